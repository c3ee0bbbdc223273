"""What both sides of an envelope agree on: object keys, envelope, report, result, states, reasons
and the runner's share of a function's time.

Standard library only and small, because it travels inside every function package. The orchestrator
writes envelopes and reads results; the runner in the function does the reverse; neither imports
the other.
"""
