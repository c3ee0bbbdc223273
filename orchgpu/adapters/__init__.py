"""The ports of `orchgpu.ports` over real things: a package for each cloud, and the scheduler."""
