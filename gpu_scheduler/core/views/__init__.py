"""Answers that read the state and change nothing."""
