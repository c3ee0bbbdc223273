"""Verification of AWS Signature Version 4 and 2, and of the expiry of presigned URLs."""
