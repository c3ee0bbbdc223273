"""The leases of this host: their pure table, its steps, and the log of evidence."""
