"""The life of leases, and when they are expected to end."""
