"""Output that stays current: the connection that reports changes, the table of `jobs --watch`."""
