"""Pop consumption: popped messages are invisible until they are acknowledged or their time ends."""
