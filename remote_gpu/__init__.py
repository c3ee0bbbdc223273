"""The data plane: frames, sessions, the GPU host's daemon, middlewares.

Owns everything between a lease and the work on its device (the role of rCUDA in the paper). It does
not know S3, SQS or Lambda, and places no requests.
"""
