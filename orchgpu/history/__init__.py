"""History: jobs, leases and devices of the past, in a SQLite file.

One consumer of the scheduler's event stream writes it (`consumer`), in a process of its own; pages,
reports and tools read it (`reader`). Nothing here is on the way of a grant.
"""
