"""Remote-GPU software between function and device: one file per middleware declares all of it.

Owns the environment rendered for the function and the server command for the host. A middleware
starts nothing itself.
"""

from remote_gpu.middleware.registry import find, names
from remote_gpu.middleware.rendering import render

__all__ = ["find", "names", "render"]
