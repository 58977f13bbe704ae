"""What the console can change in a cluster. Each action knows its equal command line."""
