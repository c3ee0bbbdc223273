"""S3 and SQS through aioboto3: AWS, LocalStack, moto and the embedded cloud alike."""
