"""Engines of logs: one module per kind of storage, found by presence."""
