"""The function behind a Function URL: each request of `/v1` is an upload, or reads a result.

    handler    the entry point
    routes     which request is answered how
    requests   one event of Lambda as a request, and what refuses it
    jobs       a request's input, its job, the job's outputs

It imports `contract`, the runner's S3 client, boto3 and the standard library only; it runs beside
the function that it serves, from the same package, under a role of its own.
"""
