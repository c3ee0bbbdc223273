"""Findings about a definition that parsed."""
