"""Replies to requests that only read the state."""
