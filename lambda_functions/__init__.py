"""The code that runs inside AWS Lambda.

`gpu_runner/` is the body of every deployed function: it runs the user's script, with a leased
device (job mode) or without one (plain mode). `orchestrate/` and `complete/` are an orchestrator
without a server, which imports the rest of this program.
"""
