"""SQS's HTTP API."""
