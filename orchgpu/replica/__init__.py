"""One replica of the orchestrator: loops bring events in, performers carry actions out, and
observers measure both."""
