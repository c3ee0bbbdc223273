"""Trusted named operations, one module each; a module declares `OPERATIONS`."""
