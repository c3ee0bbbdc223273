"""NVIDIA cards of a worker: their memory, faults and checks."""
