"""Connections to a gateway: the handshake, the session, TLS, shared memory, relays."""
