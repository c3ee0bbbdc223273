"""Verifying who sent a request: AWS Signature Version 4 and 2, and the expiry of presigned URLs."""
