"""Everything that goes to and comes from S3: the client, outputs, results and reports."""
