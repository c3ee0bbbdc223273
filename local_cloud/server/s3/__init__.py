"""S3 over its REST protocol, path style, with the sub-resources that a deployment touches."""
