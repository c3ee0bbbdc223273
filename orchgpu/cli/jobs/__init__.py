"""Commands that follow jobs: list, show, wait, cancel, retry, logs, dead letters, cost."""
