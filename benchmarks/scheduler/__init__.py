"""Figures of the scheduler: what a grant costs beside an echo over the same path."""
