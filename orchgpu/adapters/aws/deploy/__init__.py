"""Deployment through AWS's API: one module per kind of resource."""
