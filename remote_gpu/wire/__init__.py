"""The data plane's protocol: frames, limits, error codes, the mutual proof of a lease's secret.

Pure: no sockets, no clock, no randomness; standard library only, because functions carry it.
"""
