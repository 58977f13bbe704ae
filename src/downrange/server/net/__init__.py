"""TCP connections of a server: listener, dispatcher, fault injection, outgoing requests."""
