"""The middlewares of this installation: modules of `plugins`, and entry points of other packages.

A package adds one by an entry point of the group `orchgpu.middlewares`, whose object is an instance
of `Middleware` with the entry point's name.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict

from corekit.errors import invalid
from corekit.plugins import find_plugins
from remote_gpu.middleware.base import Middleware

logger = logging.getLogger(__name__)

GROUP = "orchgpu.middlewares"
_PACKAGE = "remote_gpu.middleware.plugins"


@functools.cache
def known() -> Mapping[str, Middleware]:
    """All middlewares by name. A package's entry point that cannot be loaded is left out."""
    found: dict[str, Middleware] = {}
    for name, point in sorted(find_plugins(GROUP, _PACKAGE, "MIDDLEWARE").items()):
        try:
            middleware = point.load()
        except Exception as error:  # another package's code: its fault leaves the others usable
            logger.warning("middleware %s cannot be loaded: %r", point.value, error)
            continue
        if isinstance(middleware, Middleware) and middleware.name == name:
            found[name] = middleware
        else:
            logger.warning("%s is not a Middleware with the name %r", point.value, name)
    return found


def names() -> tuple[str, ...]:
    """The names that a definition or `gpud --middleware` may use."""
    return tuple(known())


def find(name: str) -> Middleware:
    """Raises INVALID for an unknown name."""
    if name not in known():
        raise invalid(f"unknown middleware {name!r}; known are {', '.join(known())}")
    return known()[name]


def rules_table() -> str:
    """The rules of all clients as JSON, which a function's package holds (`wire/variables.py`)."""
    rules = {name: asdict(middleware.client) for name, middleware in known().items()}
    return json.dumps(rules, indent=2) + "\n"
