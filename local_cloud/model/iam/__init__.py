"""Roles of IAM with their inline policies."""
