"""Hosts and devices: their state, their health, and the requests that are feasible on them."""
