"""Run and follow."""
