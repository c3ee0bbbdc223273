"""Feasibility and choice: which devices can serve a request, and which of them serve it best."""
