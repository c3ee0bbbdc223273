"""Addresses of the network, and the origin of HTTP requests. Pure."""
