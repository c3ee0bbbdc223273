"""Hosts that come and go: pools of hosts that follow the demand that waits at the scheduler."""
