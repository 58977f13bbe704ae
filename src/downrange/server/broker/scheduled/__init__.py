"""Messages for later delivery: delay levels and timers."""
