"""Metrics of all programs: one catalogue of names, and their text in Prometheus' format. Pure."""
