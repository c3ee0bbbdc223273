"""Limits and usage accounting of keys and tenants."""
