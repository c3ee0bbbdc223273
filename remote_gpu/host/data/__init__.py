"""Declared data sets on a host: fetched once, verified, shared read-only by leases, evicted."""
