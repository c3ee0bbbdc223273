"""Warm workers outlive their leases, with the models of one tenant's workload loaded."""
