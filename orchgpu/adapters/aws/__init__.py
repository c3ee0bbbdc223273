"""AWS, LocalStack, moto and the embedded cloud: S3 and SQS for jobs, `deploy` for functions."""
