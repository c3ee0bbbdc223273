"""Curves as an SVG picture, on logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT, EDGE = 640, 360, 60
COLOURS = ("#1b6ca8", "#8fb8de", "#c8553d", "#e0a458", "#3a7d44")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Positive numbers over positive numbers."""

    name: str
    points: tuple[tuple[float, float], ...]


def write_curves(path: Path, title: str, curves: Sequence[Curve]) -> None:
    """Draw them with a grid at the decades of y and at every x of the first curve."""
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in curves for _, y in curve.points]
    low, high = 10 ** math.floor(math.log10(min(ys))), 10 ** math.ceil(math.log10(max(ys)))

    def x_of(x: float) -> float:
        part = math.log(x / min(xs)) / math.log(max(xs) / min(xs))
        return EDGE + part * (WIDTH - 2 * EDGE)

    def y_of(y: float) -> float:
        return HEIGHT - EDGE - math.log(y / low) / math.log(high / low) * (HEIGHT - 2 * EDGE)

    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
            'font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{EDGE}" y="24" font-size="14">{escape(title)}</text>',
    ]
    decades = range(round(math.log10(low)), round(math.log10(high)) + 1)
    lines += [_across(y_of(10.0**n), f"{10.0**n:g}") for n in decades]
    lines += [_mark(x_of(x), f"{x:g}") for x, _ in curves[0].points]
    for number, curve in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in curve.points)
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
        place = f'x="{EDGE + 8}" y="{46 + 16 * number}"'
        lines.append(f'<text {place} fill="{colour}">{escape(curve.name)}</text>')
    path.write_text("\n".join([*lines, "</svg>\n"]))


def _across(y: float, label: str) -> str:
    line = f'<line x1="{EDGE}" x2="{WIDTH - EDGE}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
    return f'{line}<text x="{EDGE - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'


def _mark(x: float, label: str) -> str:
    return f'<text x="{x:.1f}" y="{HEIGHT - EDGE + 18}" text-anchor="middle">{label}</text>'
