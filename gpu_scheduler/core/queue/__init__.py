"""Waiting requests: request classes, the order of service, and the dispatch of freed capacity."""
