"""The workflow of a definition, and its drawings."""
