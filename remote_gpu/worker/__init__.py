"""The worker: one process per lease, which runs trusted named operations on the lease's devices.

Owns the interface of operations, the registry of operations, the memory quota and the process. A
crash, an endless call or a leak in a worker affects its own lease only.
"""
