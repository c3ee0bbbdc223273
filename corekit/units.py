"""The only place that parses and prints units: durations in seconds, memory in MiB, percentages.

Inside the system a duration is a float in seconds (`_s`), memory an int in MiB (`_mib`). A
percentage (`_pct`) has at most one decimal; sums of percentages are made of integer permille
(`_permille`), because eight times 12.5 must be exactly 100 and floats of tenths do not add exactly.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from corekit.errors import invalid

_DURATIONS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_MEMORY_MIB = {
    "mib": 1.0,
    "m": 1.0,
    "mi": 1.0,
    "gib": 1024.0,
    "g": 1024.0,
    "gi": 1024.0,
    "mb": 1e6 / 2**20,
    "gb": 1e9 / 2**20,
    "tib": 1024.0 * 1024.0,
    "unit": 256.0,  # of KNIX
    "units": 256.0,
}
WHOLE_PERMILLE = 1000  #: 100 %
_PERCENT = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9])?)\s*%?\s*", re.ASCII)
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def _quantity(text: str, units: dict[str, float], default: str, what: str) -> float:
    match = _QUANTITY.fullmatch(text)
    unit = match.group(2).lower() or default if match else ""
    if match is None or unit not in units:
        raise invalid(f"{text!r} is not a {what}; write a number and one of {', '.join(units)}")
    return float(match.group(1)) * units[unit]


def parse_duration_s(value: str | float) -> float:
    """`"90"`, `90`, `"1.5m"`, `"250ms"` → seconds. Raises INVALID for anything else or negative."""
    if isinstance(value, str):
        return _quantity(value, _DURATIONS_S, "s", "duration")
    if isinstance(value, bool) or not math.isfinite(value) or value < 0:
        raise invalid(f"{value!r} is not a duration in seconds")
    return float(value)


def parse_memory_mib(value: str | int) -> int:
    """`4096`, `"4096"`, `"4GiB"` → MiB, rounded up. Raises INVALID for anything else."""
    if isinstance(value, str):
        return math.ceil(_quantity(value, _MEMORY_MIB, "mib", "memory size"))
    if isinstance(value, bool) or value < 0:
        raise invalid(f"{value!r} is not a memory size in MiB")
    return value


class MemorySize(NamedTuple):
    """Memory of a device: in MiB, or in percent of the device; the other one is 0."""

    mib: int = 0
    pct: int | float = 0

    def __str__(self) -> str:
        return format_percent(self.pct) if self.pct else f"{self.mib} MiB"


def parse_memory_size(text: str) -> MemorySize:
    """`"4GiB"`, `"30 units"`, `"12.5%"` → memory of a device. Raises INVALID for anything else."""
    if text.rstrip().endswith("%"):
        percent = parse_percent(text)
        if percent > 100:
            raise invalid(f"{text!r} is more than a whole device")
        return MemorySize(pct=percent)
    return MemorySize(mib=parse_memory_mib(text))


def parse_percent(text: str) -> int | float:
    """`"25"`, `"12.5"`, `"12.5 %"` → percent. Raises INVALID for anything else."""
    match = _PERCENT.fullmatch(text)
    if match is None:
        raise invalid(f"{text!r} is not a percentage; write a number such as 25 or 12.5")
    return plain_percent(float(match.group(1)))


def permille_of(percent: float) -> int:
    """The tenths of a percentage, which has at most one decimal."""
    return round(10 * percent)


def percent_of(permille: int) -> int | float:
    """The percentage of integer tenths; a whole one is an int, as earlier versions sent it."""
    whole, tenths = divmod(permille, 10)
    return permille / 10 if tenths else whole


def plain_percent(percent: float) -> int | float:
    """The same percentage; a whole one as an int."""
    if isinstance(percent, int):
        return percent
    return percent_of(permille_of(percent))


def format_percent(percent: float) -> str:
    """For people: `25 %`, `12.5 %`."""
    return f"{plain_percent(percent)} %"


def format_duration(seconds: float) -> str:
    """For people: `0.8 s`, `12 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds >= 0.1 else f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def format_bytes(count: int) -> str:
    """For people: `512 B`, `3.2 KiB`, `1.5 GiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
