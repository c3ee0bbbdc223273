"""The ports of `orchgpu.ports`, given by real things: `aws/`, `scheduler.py`, `memory.py`."""
