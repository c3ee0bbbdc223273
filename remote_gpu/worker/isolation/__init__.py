"""The isolation of a lease's processes: from gpud, from other leases, from the rest of the machine.

A worker must be taken for hostile code: a kernel, or a memory fault in a library, may run anything
in it. One module per mechanism of the kernel (`users`, `namespaces`, `bind_mounts`, `landlock`,
`seccomp`, `privileges`, `cgroup`); `probe` finds the mechanisms of this machine,
`policy` decides which are used, purely; `apply` isolates a process by them.
"""
