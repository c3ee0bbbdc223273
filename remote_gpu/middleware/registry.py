"""The middlewares of this installation: files of this package, and entry points of other packages.

A package adds one by an entry point of the group `orchgpu.middlewares`, whose object is an instance
of `Middleware`.
"""

from __future__ import annotations

import functools
import importlib
import json
import logging
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import entry_points

import remote_gpu.middleware
from corekit.errors import invalid
from remote_gpu.middleware.base import Middleware

logger = logging.getLogger(__name__)

GROUP = "orchgpu.middlewares"


@functools.cache
def known() -> Mapping[str, Middleware]:
    """All middlewares by name. A package's entry point that cannot be loaded is left out."""
    found: dict[str, Middleware] = {}
    for middleware in (*_own(), *_of_packages()):
        if found.setdefault(middleware.name, middleware) is not middleware:
            logger.warning("two middlewares are named %s; the first is used", middleware.name)
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


def _own() -> Iterator[Middleware]:
    """Every module of this package that has a `MIDDLEWARE`."""
    for module in pkgutil.iter_modules(remote_gpu.middleware.__path__):
        loaded = importlib.import_module(f"remote_gpu.middleware.{module.name}")
        if isinstance(middleware := getattr(loaded, "MIDDLEWARE", None), Middleware):
            yield middleware


def _of_packages() -> Iterator[Middleware]:
    for point in sorted(entry_points(group=GROUP)):  # the same order gives the same packages
        try:
            middleware = point.load()
        except Exception as error:  # another package's code: its fault leaves the others usable
            logger.warning("middleware %s cannot be loaded: %r", point.value, error)
            continue
        if isinstance(middleware, Middleware):
            yield middleware
        else:
            logger.warning("middleware %s is not a Middleware", point.value)
