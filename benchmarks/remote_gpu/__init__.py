"""Figures of what a function does with its device."""
