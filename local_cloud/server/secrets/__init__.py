"""SSM Parameter Store and Secrets Manager over AWS's JSON protocol."""
