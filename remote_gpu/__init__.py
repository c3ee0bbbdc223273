"""How a function uses what it was granted: frames, sessions, the GPU host's daemon, middlewares.

Owns everything between a lease and the work done on its device (the role rCUDA plays in the paper).
Knows nothing of S3, SQS or Lambda, and decides nothing about who gets which device.
"""
