"""The isolation of a lease's processes: from gpud, from other leases, from the rest of the machine.

A worker must be taken for hostile code: a kernel, or a memory fault in a library, may run anything
in it. One module per mechanism of the kernel (`users`, `namespaces`, `veil`, `landlock`, `seccomp`,
`capabilities`, `cgroup`, `privacy`); `probe` finds what the machine has, `policy` decides what is
used, purely; `apply` puts a process into it.
"""
