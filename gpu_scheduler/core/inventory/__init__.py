"""Hosts and devices: what is known of them, their health, and what they could ever serve."""
