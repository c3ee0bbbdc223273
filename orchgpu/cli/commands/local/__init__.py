"""A system on this machine."""
