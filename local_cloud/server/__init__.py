"""The cloud model behind the AWS HTTP protocols: one asyncio process, durable on disk.

S3 (REST, path style), SQS (JSON), Lambda (REST) and the few calls of IAM, STS and CloudWatch Logs
that a deployment makes. It binds loopback, for the owner of one machine; signatures are verified
only on request.
"""
