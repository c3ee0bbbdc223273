"""The memory of a lease: buffers, quota, shared segments."""
