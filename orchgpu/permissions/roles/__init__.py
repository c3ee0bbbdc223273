"""The roles, one file each, and entry points of other packages: `ROLE` is a `RoleKind`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import cast

from corekit.errors import invalid
from corekit.plugins import find_plugins
from corekit.suggest import one_of_known
from orchgpu.permissions.model import RoleKind

GROUP = "orchgpu.roles"


def role_names() -> list[str]:
    return sorted(_found())


def role_kind(name: str) -> RoleKind:
    """The role of that name. Raises INVALID for an unknown one."""
    known = _found()
    if name not in known:
        raise invalid(f"unknown role {name!r}{one_of_known(name, known)}")
    return cast("RoleKind", known[name].load())


def _found() -> Mapping[str, EntryPoint]:
    return find_plugins(GROUP, __name__, "ROLE")
