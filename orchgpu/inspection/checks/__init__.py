"""The checks: `CHECK` of each module is an `orchgpu.inspection.model.Check`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from corekit.plugins import find_plugins

if TYPE_CHECKING:
    from orchgpu.inspection.model import Check

GROUP = "orchgpu.aws_checks"


def installed() -> Mapping[str, Check]:
    """Every check by name, those of other packages too: entry points of `GROUP`."""
    points = find_plugins(GROUP, __name__, "CHECK")
    return {name: cast("Check", points[name].load()) for name in sorted(points)}
