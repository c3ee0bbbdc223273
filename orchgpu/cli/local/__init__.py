"""Commands of a local system, and of an installation."""
