"""A cloud of own hosts: objects in an S3-compatible store, queues in PostgreSQL, no Lambda."""
