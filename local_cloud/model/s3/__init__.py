"""S3: buckets, objects, uploads, policies, notifications."""
