"""Implementations of `orchgpu.ports`: a package for each cloud, a scheduler."""
