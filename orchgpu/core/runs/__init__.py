"""Runs of workflows: what is done, what is ready and what comes next, folded from results."""
