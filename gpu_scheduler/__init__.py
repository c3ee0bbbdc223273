"""Who gets which device: requests, leases, fences, job records (the role SSGM plays in the paper).

Owns the single durable truth about devices and jobs. Knows nothing of S3, SQS, Lambda or of how a
function talks to its device; secrets are bytes to it. `core` decides, `daemon` is ssgmd, `monitor`
is the host's side, `client` the caller's.
"""
