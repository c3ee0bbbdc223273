"""Domain-free foundations: ids, units, strict decoding, errors, the contract of a core.

Owns nothing about GPUs, jobs or AWS, and no I/O: everything here but `corekit.aio` is pure.
A module enters this package only when two other packages need it.
"""
