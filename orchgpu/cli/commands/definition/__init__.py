"""Define and deploy."""
