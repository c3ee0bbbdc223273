"""The clouds of this installation: packages of this folder, and entry points of other packages.

A cloud is a package with two modules. `clients` has `open_cloud` for the orchestrator: an
asynchronous context manager of `orchgpu.ports.CloudPorts`. `commands` is a
`orchgpu.cloud_services.Provider`. A package of its own registers one under its name in the
entry-point group `orchgpu.clouds`.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractAsyncContextManager
from types import ModuleType
from typing import cast

from corekit.errors import AppError, ErrorCode, invalid
from corekit.plugins import find_plugins
from corekit.suggest import one_of_known
from orchgpu.cloud_services import Provider
from orchgpu.ports import CloudPorts

GROUP = "orchgpu.clouds"


def open_cloud(name: str) -> AbstractAsyncContextManager[CloudPorts]:
    """The clients of that cloud, for as long as the context lasts. Raises INVALID for a name that
    is not a cloud; entering it raises AppError when the cloud refuses access."""
    clients = _module(name, "clients")
    return cast("AbstractAsyncContextManager[CloudPorts]", clients.open_cloud())


def provider(name: str) -> Provider:
    """That cloud as the commands use it. Raises INVALID for a name that is not a cloud."""
    return cast("Provider", _module(name, "commands"))


def _module(name: str, module: str) -> ModuleType:
    package = _package(name)
    try:
        return importlib.import_module(f"{package}.{module}")
    except ImportError as error:
        text = f"the cloud {name!r} needs a library that is not installed ({error.name})"
        raise AppError(ErrorCode.NOT_FOUND, f"{text}; see docs/how-to/without-aws.md") from error


def _package(name: str) -> str:
    known = find_plugins(GROUP, "orchgpu.adapters", "")
    if name not in known:
        raise invalid(f"unknown cloud {name!r}{one_of_known(name, known)}")
    return known[name].value
