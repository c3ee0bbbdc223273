"""SSM Parameter Store and Secrets Manager: parameters, secrets and their versions."""
