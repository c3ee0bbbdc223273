"""Feasibility and placement: the devices that can serve a request, and the best of them."""
