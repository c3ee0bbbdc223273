"""Benchmarks of the data plane and of operations."""
