"""Support of the commands about jobs: ids, records, logs, waiting, reports."""
