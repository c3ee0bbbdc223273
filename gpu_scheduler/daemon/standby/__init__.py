"""The standby: follows the log of another ssgmd, and takes over when it falls silent.

`silence.py` decides when, `follower.py` reads and applies the log, `endpoint.py` answers clients
meanwhile, `beats.py` is the leader's part: signs of life while it is idle, and its last entry.
"""
