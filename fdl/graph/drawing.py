"""A workflow as Graphviz text, as lines for a terminal, and as an SVG picture."""

from __future__ import annotations

from dataclasses import dataclass
from xml.sax.saxutils import escape

from fdl.graph.graph import Graph, Place, Step
from fdl.text.nodes import quoted

_BOX_W, _BOX_H = 200, 52  #: of a step, in pixels
_GAP_X, _GAP_Y = 150, 28
_MARGIN = 24
#: About what a character of the 12 px font takes.
_CHARACTER_W = 6.6
_STYLE = (
    "text{font:12px sans-serif;fill:#1a1a1a} .small{font-size:11px;fill:#555}"
    " rect{fill:#fff;stroke:#444} .device{fill:#e8f3e8;stroke:#2d7a2d}"
    " path{fill:none;stroke:#666} .place{fill:#555}"
)


def dot(graph: Graph) -> str:
    """For Graphviz: boxes are functions (filled when they borrow a device), the rest is places."""
    lines = ["digraph workflow {", "  rankdir=LR;", "  node [shape=box];"]
    for step in graph.steps:
        label = f"{step.name}\\n{step.device}" if step.device else step.name
        filled = ", style=filled, fillcolor=palegreen" if step.device else ""
        node = f"{quoted(step.name)} [label={_label(label)}{filled}];"
        if step.group:  # Graphviz puts subgraphs of one name together
            cluster = quoted(f"cluster {step.group}")
            node = f"subgraph {cluster} {{ label={quoted(step.group)}; {node} }}"
        lines.append(f"  {node}")
    places = [place for place, _ in graph.entries] + [place for _, place in graph.exits]
    lines += [
        f"  {quoted('s3:' + label)} [shape=plaintext, label={quoted(label)}];"
        for label in dict.fromkeys(place.label for place in places)
    ]
    for place, name in graph.entries:
        lines.append(f"  {quoted('s3:' + place.label)} -> {quoted(name)};")
    for edge in graph.edges:
        ends = f"{quoted(edge.source)} -> {quoted(edge.target)}"
        lines.append(f"  {ends} [label={quoted(edge.place.label)}];")
    for name, place in graph.exits:
        lines.append(f"  {quoted(name)} -> {quoted('s3:' + place.label)};")
    return "\n".join([*lines, "}"]) + "\n"


def _label(text: str) -> str:
    return quoted(text).replace("\\\\n", "\\n")


def terminal(graph: Graph) -> str:
    """Each function with what starts it and where its files go."""
    blocks = []
    for step in graph.steps:
        device = f"  [{step.device}]" if step.device else ""
        lines = [f"  {place.label} ─▶" for place, name in graph.entries if name == step.name]
        lines += [
            f"  {e.source} ─ {e.place.label} ─▶" for e in graph.edges if e.target == step.name
        ]
        group = f"  (group {step.group})" if step.group else ""
        lines.append(f"{step.name}{device}{group}")
        lines += [
            f"  ─ {e.place.label} ─▶ {e.target}" for e in graph.edges if e.source == step.name
        ]
        lines += [f"  ─▶ {place.label}" for name, place in graph.exits if name == step.name]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


@dataclass(frozen=True, slots=True)
class _Box:
    """Where a step lies; centre lines are where arrows end."""

    x: int
    y: int

    @property
    def middle(self) -> int:
        return self.y + _BOX_H // 2

    @property
    def right(self) -> int:
        return self.x + _BOX_W


def svg(graph: Graph) -> str:
    """A picture that needs nothing else: steps in columns by their distance from the start."""
    longest = max((len(p.label) for p in _places(graph)), default=0)
    side = _MARGIN + round(longest * _CHARACTER_W)
    boxes = _boxes(graph, side)
    parts = [_step(step, boxes[step.name]) for step in graph.steps]
    parts += [_arrow(boxes[e.source], boxes[e.target], e.place.label) for e in graph.edges]
    for step in graph.steps:
        box = boxes[step.name]
        entering = [place.label for place, name in graph.entries if name == step.name]
        leaving = [place.label for name, place in graph.exits if name == step.name]
        parts += [_stub(box, label, n, entering=True) for n, label in enumerate(entering)]
        parts += [_stub(box, label, n, entering=False) for n, label in enumerate(leaving)]
    width = max((box.right for box in boxes.values()), default=0) + side + _GAP_X
    height = max((box.y for box in boxes.values()), default=0) + _BOX_H + _GAP_Y + _MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}">\n<style>{_STYLE}</style>\n'
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        '<path d="M0,0 L8,4 L0,8" class="place"/></marker></defs>\n'
    )
    return head + "\n".join(parts) + "\n</svg>\n"


def _places(graph: Graph) -> list[Place]:
    return [place for place, _ in graph.entries] + [place for _, place in graph.exits]


def columns(graph: Graph) -> dict[str, int]:
    """Step → its column: one more than the furthest step before it; loops end where they close."""
    column = {step.name: 0 for step in graph.steps}
    for _ in graph.steps:
        for edge in graph.edges:
            if edge.source != edge.target:
                after = min(column[edge.source] + 1, len(graph.steps) - 1)
                column[edge.target] = max(column[edge.target], after)
    return column


def _boxes(graph: Graph, side: int) -> dict[str, _Box]:
    column = columns(graph)
    filled: dict[int, int] = {}
    boxes = {}
    for step in graph.steps:
        at = column[step.name]
        row = filled.get(at, 0)
        filled[at] = row + 1
        x = side + _GAP_X // 2 + at * (_BOX_W + _GAP_X)
        boxes[step.name] = _Box(x, _MARGIN + row * (_BOX_H + _GAP_Y))
    return boxes


def _step(step: Step, box: _Box) -> str:
    kind = ' class="device"' if step.device else ""
    name_y = box.y + (22 if step.device else 31)
    name = f"{step.name} ({step.group})" if step.group else step.name
    text = f'<text x="{box.x + 12}" y="{name_y}">{escape(_cut(name))}</text>'
    if step.device:
        text += (
            f'<text class="small" x="{box.x + 12}" y="{box.y + 40}">{escape(step.device)}</text>'
        )
    return f'<rect{kind} x="{box.x}" y="{box.y}" width="{_BOX_W}" height="{_BOX_H}" rx="6"/>{text}'


def _cut(text: str) -> str:
    longest = round(_BOX_W / _CHARACTER_W) - 4
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _arrow(start: _Box, end: _Box, label: str) -> str:
    x1, y1, x2, y2 = start.right, start.middle, end.x, end.middle
    bend = (x1 + x2) // 2
    line = f'<path d="M{x1},{y1} C{bend},{y1} {bend},{y2} {x2},{y2}" marker-end="url(#tip)"/>'
    text = f'<text class="small" text-anchor="middle" x="{bend}" y="{(y1 + y2) // 2 - 5}">'
    return f"{line}{text}{escape(label)}</text>"


def _stub(box: _Box, label: str, number: int, *, entering: bool) -> str:
    """A place outside the workflow: its name, and a short arrow."""
    y = box.middle + 16 * number
    x1, x2 = (box.x - 40, box.x) if entering else (box.right, box.right + 40)
    anchor, text_x = ("end", x1 - 6) if entering else ("start", x2 + 6)
    line = f'<path d="M{x1},{y} L{x2},{y}" marker-end="url(#tip)"/>'
    text = f'<text class="small" text-anchor="{anchor}" x="{text_x}" y="{y + 4}">'
    return f"{line}{text}{escape(label)}</text>"
