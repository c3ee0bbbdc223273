"""What runs inside AWS Lambda.

`gpu_runner/` is the one function body of every deployed function: it runs the user's script, with a
lent device (job mode) or without one (plain mode).
"""
