"""The gateway of a GPU host: handshakes, sessions, and relays to the servers of leases."""
