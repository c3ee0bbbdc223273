"""The scheduler, followed: the one client of its changes, and the newest job records kept current.

`top`, `jobs --watch`, `run --wait`, `orchgpu.map` and the console stand on it; the history needs
the scheduler's own times and stores its position, so it reads the event stream itself.
"""
