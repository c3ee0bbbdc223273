"""The isolation of a lease's processes: from gpud, from other leases, from the rest of the machine.

A worker must be taken for hostile code: a kernel, or a memory fault in a library, may run anything
in it. One module per mechanism of the kernel (`users`, `namespaces`, `bind_mounts`, `landlock`,
`seccomp`, `privileges`, `cgroup`); `probe` finds those of this machine, `policy` decides which are
used, purely, `machine` does both for gpud. `apply` isolates the spawner and its workers;
`sandboxes` is gpud's side of it: it lends users, groups and folders, and ends what ran in them.
"""
