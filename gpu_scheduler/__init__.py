"""The scheduler of devices: requests, leases, fences, job records (SSGM in the paper).

It owns the durable state of devices and jobs. S3, SQS, Lambda and the protocol between a function
and its device are unknown here; secrets are opaque bytes. `core` decides, `daemon` is ssgmd,
`monitor` runs on hosts, `client` in callers.
"""
