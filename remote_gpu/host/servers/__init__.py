"""Servers of other middlewares: one per lease, each in a process group of its own."""
