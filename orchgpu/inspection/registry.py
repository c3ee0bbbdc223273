"""The checks that are installed: modules of `checks`, and entry points of other packages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from corekit.plugins import find_plugins
from orchgpu.inspection.model import Check

GROUP = "orchgpu.aws_checks"


def checks() -> Mapping[str, Check]:
    """Every check, by name."""
    found = find_plugins(GROUP, "orchgpu.inspection.checks", "CHECK")
    return {name: cast("Check", found[name].load()) for name in sorted(found)}
