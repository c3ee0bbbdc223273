"""The state: the books of leases, waiting requests and records, and their indexes."""
