"""gpud: the program of a GPU host. The gateway admits only leases that the scheduler installed.

Owns the gateway, the installed leases with their deadlines, and the workers; implements the
monitor's `HostControl`. Grants are the scheduler's decision; gpud enforces them and ends leases.
"""
