"""A workflow as text for Graphviz and for Mermaid, and as a tree for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fdl.graph.graph import Graph, Step
from fdl.text.nodes import quoted


def dot(graph: Graph) -> str:
    """For Graphviz: boxes are functions (filled when a job gets a device), the rest is storage."""
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


#: The lines of a tree: at a node, at the last one, past a node.
BRANCHES = ("├─▶ ", "└─▶ ", "│   ")
ASCII_BRANCHES = ("|-> ", "`-> ", "|   ")


def text(graph: Graph, branches: tuple[str, str, str] = BRANCHES) -> str:
    """A tree: storage, the functions that its objects start, their outputs, the next functions.

    A function that several places start is drawn out once; elsewhere it is `(above)`.
    """
    written = {e.source for e in graph.edges} | {name for name, _ in graph.exits}
    drawn: set[str] = set()
    lines: list[str] = []
    for label in dict.fromkeys(place.label for place, _ in graph.entries):
        readers = [name for place, name in graph.entries if place.label == label]
        lines += [label, *_readers(graph, list(dict.fromkeys(readers)), drawn, branches)]
    for step in graph.steps:  # what no storage starts, and what only a loop of functions starts
        if step.name not in drawn:
            below = _below(graph, step, drawn, branches) if step.name in written else []
            lines += [_title(step), *below]
    return "\n".join(lines) + "\n"


def _title(step: Step) -> str:
    device = f"  [{step.device}]" if step.device else ""
    return f"{step.name}{device}" + (f"  (group {step.group})" if step.group else "")


def _readers(
    graph: Graph, names: Sequence[str], drawn: set[str], branches: tuple[str, str, str]
) -> list[str]:
    """The functions that one place starts, as branches."""
    steps = {step.name: step for step in graph.steps}
    nodes = []
    for name in names:
        if name in drawn:
            nodes.append((f"{name}  (above)", list[str]()))
        else:
            nodes.append((_title(steps[name]), _below(graph, steps[name], drawn, branches)))
    return _branched(nodes, branches)


def _below(graph: Graph, step: Step, drawn: set[str], branches: tuple[str, str, str]) -> list[str]:
    """The outputs of a function, each with the functions that it starts."""
    drawn.add(step.name)
    outputs: dict[str, list[str]] = {}
    for edge in graph.edges:
        if edge.source == step.name:
            outputs.setdefault(edge.place.label, []).append(edge.target)
    for name, place in graph.exits:
        if name == step.name:
            outputs.setdefault(place.label, [])
    nodes = [
        (label, _readers(graph, readers, drawn, branches)) for label, readers in outputs.items()
    ]
    return _branched(nodes, branches)


def _branched(nodes: Sequence[tuple[str, list[str]]], branches: tuple[str, str, str]) -> list[str]:
    middle, at_last, passing = branches
    lines = []
    for number, (title, below) in enumerate(nodes, 1):
        last = number == len(nodes)
        lines.append((at_last if last else middle) + title)
        indent = " " * len(passing) if last else passing
        lines += [indent + line for line in below]
    return lines


def mermaid(graph: Graph) -> str:
    """For Mermaid, which Markdown pages render: boxes are functions, rounded ones storage."""
    functions = {step.name: f"f{number}" for number, step in enumerate(graph.steps)}
    places = [place for place, _ in graph.entries] + [place for _, place in graph.exits]
    labels = dict.fromkeys(place.label for place in places)
    stored = {label: f"s{number}" for number, label in enumerate(labels)}
    groups = dict.fromkeys(step.group for step in graph.steps)
    lines = ["flowchart LR", "  classDef device fill:#e8f3e8,stroke:#2d7a2d"]
    for number, group in enumerate(groups):
        nodes = [_node(step, functions) for step in graph.steps if step.group == group]
        if group:
            nodes = [f"  subgraph g{number} [{_text(group)}]", *nodes, "  end"]
        lines += nodes
    lines += [f"  {stored[label]}([{_text(label)}])" for label in labels]
    lines += [f"  {stored[place.label]} --> {functions[name]}" for place, name in graph.entries]
    for edge in graph.edges:
        arrow = f"-- {_text(edge.place.label)} -->"
        lines.append(f"  {functions[edge.source]} {arrow} {functions[edge.target]}")
    lines += [f"  {functions[name]} --> {stored[place.label]}" for name, place in graph.exits]
    return "\n".join(lines) + "\n"


def _node(step: Step, names: Mapping[str, str]) -> str:
    if not step.device:
        return f"  {names[step.name]}[{_text(step.name)}]"
    return f"  {names[step.name]}[{_text(step.name, step.device)}]:::device"


#: Characters that mean something inside a label, as Mermaid's entities.
_ENTITIES = str.maketrans(
    {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;"}
)


def _text(*lines: str) -> str:
    return '"' + "<br/>".join(line.translate(_ENTITIES) for line in lines) + '"'
