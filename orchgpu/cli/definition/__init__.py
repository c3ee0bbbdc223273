"""Commands that read definitions and deploy them."""
