"""Plugins: objects found by a module's presence in a package, or by a package's entry point.

A module `NAME.py` in the package is the plugin `NAME`; another distribution registers one under the
entry-point group. A plugin of the package takes precedence over another with the same name. The
search imports no plugin; `EntryPoint.load` does.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec


def find_plugins(group: str, package: str, attribute: str) -> Mapping[str, EntryPoint]:
    """Every plugin by name: `attribute` of each module of `package`, and the group's entries.

    Without an attribute, a plugin is itself a package: each one below `package` is found.
    """
    spec = find_spec(package)
    folders = [] if spec is None else spec.submodule_search_locations
    modules = [each for each in pkgutil.iter_modules(folders) if each.ispkg or attribute]
    names = [each.name for each in modules if each.name[0] != "_"]
    values = {name: f"{package}.{name}:{attribute}".rstrip(":") for name in names}
    own = {name: EntryPoint(name, value, group) for name, value in values.items()}
    return {point.name: point for point in entry_points(group=group)} | own
