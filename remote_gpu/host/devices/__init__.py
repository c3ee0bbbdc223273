"""The devices of this host, real and emulated, and the operations that they offer."""
