"""The clouds that an orchestrator can serve: each is a package of this folder, found by its name.

A cloud is a package with a module `clients`, which has `open_cloud`: an asynchronous context
manager of `orchgpu.ports.CloudPorts`. Nothing else names a provider.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from contextlib import AbstractAsyncContextManager
from typing import cast

import orchgpu.adapters
from corekit.errors import invalid
from orchgpu.ports import CloudPorts


def names() -> list[str]:
    """Every cloud of this installation."""
    packages = [m.name for m in pkgutil.iter_modules(orchgpu.adapters.__path__) if m.ispkg]
    return sorted(name for name in packages if importlib.util.find_spec(_clients_of(name)))


def open_cloud(name: str) -> AbstractAsyncContextManager[CloudPorts]:
    """The clients of that cloud, for as long as the context lasts. Raises INVALID for a name that
    is not a cloud; entering it raises AppError when the cloud refuses access."""
    if name not in names():
        raise invalid(f"unknown cloud {name!r}; known are {', '.join(names())}")
    module = importlib.import_module(_clients_of(name))
    return cast("AbstractAsyncContextManager[CloudPorts]", module.open_cloud())


def _clients_of(name: str) -> str:
    return f"{orchgpu.adapters.__name__}.{name}.clients"
