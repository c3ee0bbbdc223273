"""Curves as an SVG picture, on logarithmic or linear axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT, EDGE = 640, 360, 60
COLOURS = ("#1b6ca8", "#8fb8de", "#c8553d", "#e0a458", "#3a7d44")
_TICKS = 6  #: about as many on a linear axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Numbers over numbers; positive ones on logarithmic axes."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis: values from `low` to `high` on pixels from `first` to `last`."""

    low: float
    high: float
    first: float
    last: float
    ticks: tuple[float, ...]
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value."""
        if self.logarithmic:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / ((self.high - self.low) or 1.0)
        return self.first + part * (self.last - self.first)


def write_curves(
    path: Path,
    title: str,
    curves: Sequence[Curve],
    *,
    logarithmic: bool = True,
    columns: Sequence[str] = (),
) -> None:
    """Draw them with a grid: on logarithmic axes at the decades of y and every x of the first.

    `columns`: names of the x, which are then 0, 1, 2 and so on.
    """
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in curves for _, y in curve.points]
    right, bottom = WIDTH - EDGE, HEIGHT - EDGE
    if logarithmic:
        ticks = tuple(x for x, _ in curves[0].points)
        x_axis = _Axis(min(xs), max(xs), EDGE, right, ticks, logarithmic=True)
        y_axis = _decades(ys)
    else:
        x_axis = _linear(min(xs), max(xs), EDGE, right)
        y_axis = _linear(0.0, max(*ys, 0.0), bottom, EDGE)
    if columns:
        x_axis = _Axis(0, len(columns) - 1, EDGE, right, tuple(range(len(columns))))
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
            'font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{EDGE}" y="24" font-size="14">{escape(title)}</text>',
    ]
    lines += [_across(y_axis.at(tick), f"{tick:g}") for tick in y_axis.ticks]
    names = columns or [f"{tick:g}" for tick in x_axis.ticks]
    lines += [_mark(x_axis.at(x), name) for x, name in zip(x_axis.ticks, names, strict=True)]
    for number, curve in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{x_axis.at(x):.1f},{y_axis.at(y):.1f}" for x, y in curve.points)
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
        place = f'x="{EDGE + 8}" y="{46 + 16 * number}"'
        lines.append(f'<text {place} fill="{colour}">{escape(curve.name)}</text>')
    path.write_text("\n".join([*lines, "</svg>\n"]))


def _decades(ys: Sequence[float]) -> _Axis:
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    ticks = tuple(10.0**n for n in range(low, high + 1))
    return _Axis(ticks[0], ticks[-1], HEIGHT - EDGE, EDGE, ticks, logarithmic=True)


def _linear(low: float, high: float, first: float, last: float) -> _Axis:
    """Ticks at multiples of 1, 2 or 5 × a power of ten; the axis ends at one."""
    rough = ((high - low) or 1.0) / _TICKS
    decade = 10 ** math.floor(math.log10(rough))
    step = next(decade * factor for factor in (1, 2, 5, 10) if decade * factor >= rough)
    start, end = math.floor(low / step), math.ceil(high / step)
    ticks = tuple(round(number * step, 10) for number in range(start, max(end, start + 1) + 1))
    return _Axis(ticks[0], ticks[-1], first, last, ticks)


def _across(y: float, label: str) -> str:
    line = f'<line x1="{EDGE}" x2="{WIDTH - EDGE}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
    return f'{line}<text x="{EDGE - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'


def _mark(x: float, label: str) -> str:
    return f'<text x="{x:.1f}" y="{HEIGHT - EDGE + 18}" text-anchor="middle">{label}</text>'
