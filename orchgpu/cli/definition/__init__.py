"""Support of the commands that read definitions and deploy them."""
