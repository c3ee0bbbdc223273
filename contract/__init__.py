"""The contract between orchestrator and runner: object keys, envelope, result, report, states,
reasons and the time that the runner keeps back.

Standard library only and small, because it travels inside every function package. The orchestrator
writes envelopes and reads results; the runner in the function does the reverse; neither imports
the other.
"""
