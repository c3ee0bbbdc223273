"""Limits and accounting: what each key and each tenant may have waiting, and what it uses."""
