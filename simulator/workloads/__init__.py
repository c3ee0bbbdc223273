"""Workloads on the production scheduler core, on virtual time: which policy suits which load.

No wire, no cloud, no faults: devices with memory and warm workers, requests, their waits and run
times. `orchgpu simulate` runs it; a run is described by a YAML file (`run_file.py`).
"""
