"""Support of the commands of a local system."""
