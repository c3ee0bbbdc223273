"""gpud: the program of a GPU host. Its doors open only for leases that the scheduler installed.

Owns the gateway, the installs with their deadlines, and the workers; implements the monitor's
HostControl port. Decides nothing about who gets a device: it obeys, and cuts.
"""
