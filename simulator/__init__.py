"""Production cores on virtual time: `faults` tests the whole system, `workloads` compares policies.

The same seed gives the same trace hash on every machine and under every PYTHONHASHSEED.
"""
