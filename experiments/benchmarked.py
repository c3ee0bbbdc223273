"""Figures that a benchmark of the real system measures, in a process of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.report import finished

#: A benchmark that takes longer hangs.
LIMIT_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The values of one benchmark by metric."""

    values: Mapping[str, float]

    def named(self, names: Mapping[str, str]) -> dict[str, float]:
        """The values of some metrics by other names; a metric that was skipped is left out."""
        return {short: self.values[name] for name, short in names.items() if name in self.values}


def measured(name: str, *arguments: str) -> Measured:
    """Run `python -m benchmarks.NAME`. Raises RuntimeError with its last lines when it fails."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *arguments]
    done = finished(command, LIMIT_S)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()[-3:]
        raise RuntimeError(f"benchmarks.{name} exited with {done.returncode}: {' / '.join(lines)}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return Measured(values={one["metric"]: one["value"] for one in answer["results"]})
