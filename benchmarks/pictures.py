"""Pictures in one style: for print, and for eyes that do not tell all colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from simulator.workloads.plots import Axes, save

#: Okabe and Ito, "Color Universal Design": colours that most eyes tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
_MARKERS, _LINES = "os^Dv<>", ("-", "--", "-.", ":")
#: More points have no markers.
_MARKED_MAX = 30
_SIZE = (7.0, 4.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Numbers over numbers; `theirs`: of the paper."""

    name: str
    points: Sequence[tuple[float, float]]
    theirs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Numbers of named things; a name without a number has no bar."""

    name: str
    values: Mapping[str, float]
    theirs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One picture with the paper's axes: curves, or bars."""

    name: str  #: of its file
    title: str
    x: str
    y: str
    curves: Sequence[Curve] = ()
    bars: Sequence[Bars] = ()
    logarithmic_x: bool = False
    logarithmic_y: bool = False


def draw(picture: Picture, folder: Path) -> Path:
    """Write one picture as SVG. Equal data give an equal file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{picture.name}.svg"
    save(path, lambda axes: _drawn(axes, picture), size=_SIZE)
    return path


def _drawn(axes: Axes, picture: Picture) -> None:
    if picture.bars:
        _draw_bars(axes, picture.bars)
    else:
        _draw_curves(axes, picture.curves)
    if picture.logarithmic_x:
        axes.set_xscale("log")
    if picture.logarithmic_y:
        axes.set_yscale("symlog", linthresh=0.1)
    axes.set_title(picture.title, fontsize="medium")
    axes.set_xlabel(picture.x)
    axes.set_ylabel(picture.y)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, axis="y", alpha=0.3)
    beside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if picture.bars else {}
    axes.legend(fontsize="small", frameon=False, **beside)


def _draw_curves(axes: Axes, curves: Sequence[Curve]) -> None:
    styles = zip(cycle(COLOURS), cycle(_MARKERS), cycle(_LINES), strict=False)
    for curve in curves:
        xs, ys = [x for x, _ in curve.points], [y for _, y in curve.points]
        if curve.theirs:
            axes.plot(xs, ys, "kx", markersize=7, markeredgewidth=1.8, label=curve.name)
            continue
        colour, marker, line = next(styles)
        marked = marker if len(xs) <= _MARKED_MAX else None
        axes.plot(
            xs, ys, color=colour, marker=marked, linestyle=line, markersize=4, label=curve.name
        )


def _draw_bars(axes: Axes, groups: Sequence[Bars]) -> None:
    names = list(dict.fromkeys(name for group in groups for name in group.values))
    width, colours = 0.8 / len(groups), cycle(COLOURS)
    for number, group in enumerate(groups):
        places = [
            names.index(name) + (number - (len(groups) - 1) / 2) * width for name in group.values
        ]
        look = {"color": "white", "edgecolor": "black", "hatch": "//"}
        if not group.theirs:
            look = {"color": next(colours)}
        axes.bar(places, list(group.values.values()), width, label=group.name, **look)
    axes.set_xticks(range(len(names)), names, rotation=20, ha="right", fontsize="small")
