"""Contents that callers sent, kept by their hash, and the resources made of them."""
