"""SQS: queues and their settings."""
