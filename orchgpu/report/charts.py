"""Charts of a report: bars and lines as inline SVG, and the console's Gantt of devices.

Colours are CSS variables of the page, so that both schemes apply. Each mark has a title, which
browsers show on hover. The Gantt is the elements that the console draws, for the same styles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape

from corekit.values import Value
from orchgpu.history.reader import DeviceSpans, LeaseSpan, Window

WIDTH = 960
HEIGHT = 180
LEFT, RIGHT, TOP, BOTTOM = 62, 8, 10, 24
#: A span is drawn at least this wide.
SPAN_MIN = 1.0
#: The most ticks of an axis of time.
TICKS = 8
#: Lengths of time between ticks, and ends of an axis of lengths of time.
LENGTHS_S = (
    *(1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10_800, 21_600, 43_200),
    *(86_400 * days for days in (1, 2, 5, 10, 20, 50, 100)),
)


class Line(Value):
    """One series of a chart: a value for each step; None leaves a gap."""

    name: str
    css: str  #: class with its colour
    values: Sequence[float | None]


def moment(at_s: float, window: Window) -> str:
    """A time of an axis, in UTC: with the date in windows of more than a day."""
    form = "%H:%M" if window.until_s - window.since_s <= 86_400 else "%m-%d %H:%M"
    return datetime.fromtimestamp(at_s, UTC).strftime(form)


def bars(
    window: Window,
    time_s: Sequence[float],
    step_s: float,
    lines: Sequence[Line],
    form: Callable[[float], str],
    label: str,
) -> str:
    """Stacked bars, one stack for each step."""
    count = len(time_s)
    stacks = [sum(line.values[step] or 0.0 for line in lines) for step in range(count)]
    top = axis_end(max(stacks, default=0.0))
    marks: list[str] = []
    for step, at_s in enumerate(time_s):
        base, x, end = 0.0, _x(at_s, window), _x(min(at_s + step_s, window.until_s), window)
        for line in lines:
            value = line.values[step] or 0.0
            if value:
                low, high = _y(base, top), _y(base + value, top)
                title = f"{moment(at_s, window)}: {line.name} {form(value)}"
                marks.append(
                    f'<rect class="{line.css}" x="{x + 0.5:.1f}" y="{high:.1f}" '
                    f'width="{max(SPAN_MIN, end - x - 1):.1f}" height="{max(0.5, low - high):.1f}">'
                    f"<title>{escape(title)}</title></rect>"
                )
                base += value
    return _chart(window, top, form, label, marks)


def curves(
    window: Window,
    time_s: Sequence[float],
    step_s: float,
    lines: Sequence[Line],
    form: Callable[[float], str],
    label: str,
    tops: Sequence[float],
) -> str:
    """Lines over the steps, with a point for each value; the axis ends at one of `tops`."""
    found = [value for line in lines for value in line.values if value is not None]
    highest = max(found, default=0.0)
    top = next((one for one in tops if one >= highest), highest)
    marks: list[str] = []
    for line in lines:
        points = [
            None if value is None else (_x(_middle(at_s, step_s, window), window), _y(value, top))
            for at_s, value in zip(time_s, line.values, strict=True)
        ]
        marks.append(f'<path class="line {line.css}" d="{_path(points)}"/>')
        for point, at_s, value in zip(points, time_s, line.values, strict=True):
            if point is not None and value is not None:
                title = f"{moment(at_s, window)}: {line.name} {form(value)}"
                marks.append(
                    f'<circle class="{line.css}" cx="{point[0]:.1f}" cy="{point[1]:.1f}" r="2">'
                    f"<title>{escape(title)}</title></circle>"
                )
    return _chart(window, top, form, label, marks)


def gantt(window: Window, devices: Sequence[DeviceSpans], label: str) -> str:
    """One track for each device with the spans of its leases."""
    ticks = [(_percent(at_s, window), moment(at_s, window)) for at_s in _ticks(window)]
    names = "".join(f'<span style="left:{left:.2f}%">{text}</span>' for left, text in ticks)
    grid = "".join(f'<i class="gantt-line" style="left:{left:.2f}%"></i>' for left, _ in ticks)
    rows = [f'<span></span><div class="gantt-axis">{names}</div>']
    for device in devices:
        spans = "".join(_span(span, window) for span in _visible(device.spans, window))
        rows.append(
            f'<span class="gantt-label" title="{escape(device.device)}">{escape(device.name)}'
            f'</span><div class="gantt-track">{grid}{spans}</div>'
        )
    chart = f'<div class="gantt" role="img" aria-label="{escape(label)}">{"".join(rows)}</div>'
    return f'<div class="chart">{chart}</div>'


def _visible(spans: Sequence[LeaseSpan], window: Window) -> list[LeaseSpan]:
    """Spans without those that would lie within the drawn width of the one before."""
    least_s = (window.until_s - window.since_s) * SPAN_MIN / WIDTH
    shown: list[LeaseSpan] = []
    for span in spans:
        if not shown or span.end_s > max(shown[-1].end_s, shown[-1].start_s + least_s):
            shown.append(span)
    return shown


def _span(span: LeaseSpan, window: Window) -> str:
    left, end = _percent(span.start_s, window), _percent(span.end_s, window)
    css = {True: "cold", False: "warm", None: "unknown"}[span.cold]
    start = {True: "cold start", False: "warm start", None: "start not known"}[span.cold]
    title = f"{span.function or 'job'} {span.job} attempt {span.attempt}, {start}"
    title += f", {span.end_s - span.start_s:.1f} s" + (f", {span.reason}" if span.reason else "")
    return (
        f'<span class="gantt-span {css}" style="left:{left:.2f}%;width:{end - left:.2f}%" '
        f'title="{escape(title)}"></span>'
    )


def _percent(at_s: float, window: Window) -> float:
    part = (at_s - window.since_s) / (window.until_s - window.since_s)
    return 100 * min(1.0, max(0.0, part))


def _chart(
    window: Window, top: float, form: Callable[[float], str], label: str, marks: Sequence[str]
) -> str:
    grid: list[str] = []
    for part in (0.0, 0.5, 1.0):
        y = _y(top * part, top)
        grid.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="end" x="{LEFT - 6}" y="{y + 4:.1f}">{escape(form(top * part))}</text>'
        )
    return _svg(label, [*grid, *marks, *_axis(window, HEIGHT - BOTTOM)])


def _ticks(window: Window) -> Iterator[float]:
    """Round times, a few in any window."""
    length_s = window.until_s - window.since_s
    every_s = next((one for one in LENGTHS_S if length_s / one <= TICKS), LENGTHS_S[-1])
    at_s = math.ceil(window.since_s / every_s) * every_s
    while at_s <= window.until_s:
        yield at_s
        at_s += every_s


def _axis(window: Window, y: float) -> list[str]:
    found = []
    for at_s in _ticks(window):
        x = _x(at_s, window)
        css = "end" if x > WIDTH - 40 else "start" if x < LEFT + 20 else "middle"
        found.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 4}"/>'
            f'<text class="{css}" x="{x:.1f}" y="{y + 17}">{moment(at_s, window)}</text>'
        )
    return found


def _svg(label: str, marks: Sequence[str]) -> str:
    return (
        f'<div class="chart"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(label)}">{"".join(marks)}</svg></div>'
    )


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    path, pen_down = [], False
    for point in points:
        if point is not None:
            path.append(f"{'L' if pen_down else 'M'}{point[0]:.1f} {point[1]:.1f}")
        pen_down = point is not None
    return " ".join(path)


def _middle(at_s: float, step_s: float, window: Window) -> float:
    return (at_s + min(at_s + step_s, window.until_s)) / 2


def _x(at_s: float, window: Window) -> float:
    part = (at_s - window.since_s) / (window.until_s - window.since_s)
    return LEFT + part * (WIDTH - LEFT - RIGHT)


def _y(value: float, top: float) -> float:
    return TOP + (1 - min(1.0, value / top)) * (HEIGHT - TOP - BOTTOM)


def axis_end(highest: float) -> float:
    """The end of an axis: few digits, at least as high as the highest value."""
    if highest <= 0:
        return 1.0
    power = 1.0
    while power > highest:
        power /= 10
    while power * 10 < highest:
        power *= 10
    return next(
        power * factor for factor in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if power * factor >= highest
    )
