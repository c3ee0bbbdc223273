"""Containers of runs: a function's OCI image, started by podman for one lease.

`probe` tries at the start what works on this machine, `command` decides the options of a container,
`images` keeps images within a space, and `serving` starts the one container of a run when its
runner asks for it.
"""
