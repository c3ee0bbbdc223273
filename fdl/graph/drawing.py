"""A workflow as text for Graphviz and for Mermaid, and as lines for a terminal."""

from __future__ import annotations

from collections.abc import Mapping

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
    """A label in quotes, of one or several lines."""
    return '"' + "<br/>".join(line.translate(_ENTITIES) for line in lines) + '"'
