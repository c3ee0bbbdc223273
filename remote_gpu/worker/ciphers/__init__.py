"""Ciphers on devices."""
