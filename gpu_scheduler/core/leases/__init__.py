"""The life cycle of leases, their lengths, and the forecast of their ends."""
