"""Implementations of `orchgpu.ports`: a package for each cloud, a model in memory, a scheduler."""
