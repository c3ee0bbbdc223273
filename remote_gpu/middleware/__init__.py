"""From a granted lease to what the function gets for it: one file per remote-GPU software.

Owns the environment rendered for the function and the server command for the host. Pure: a
middleware here starts nothing.
"""

from remote_gpu.middleware.base import (
    Middleware,
    ServerCommand,
    VisibleDevices,
    find,
    names,
    render,
)

__all__ = ["Middleware", "ServerCommand", "VisibleDevices", "find", "names", "render"]
