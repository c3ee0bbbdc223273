"""The data plane's bytes: frames, limits, error codes and the mutual proof of a lease's secret.

Pure: no sockets, no clock, no randomness; standard library only, for it travels with functions.
"""
