"""Request bodies and documents of S3's HTTP API."""
