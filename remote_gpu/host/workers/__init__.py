"""Workers on the host's side: the pool, each lease's processes and files, and their removal."""
