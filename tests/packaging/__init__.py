"""What a release uploads, installed and used."""
