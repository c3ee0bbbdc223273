"""Older and foreign shapes of definitions, rewritten into the current one."""
