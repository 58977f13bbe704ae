"""Live tests of our own servers, over real sockets."""
