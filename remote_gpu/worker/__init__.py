"""One process per lease: runs trusted named operations on the devices the lease was given.

Owns the `Operation` interface, the registry of operations, the memory quota and the process in
which they run. A crash, an endless call or a leak here touches one lease and nothing else.
"""
