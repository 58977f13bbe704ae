"""Where requests go: routes, name servers, broker health, queue choice, heartbeats."""
