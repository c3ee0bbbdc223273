"""Workflows: edges by paths, and the three ways to draw them."""

import re
from pathlib import Path

import pytest

from fdl.graph.drawing import ASCII_BRANCHES, dot, mermaid, text
from fdl.graph.graph import Edge, Graph, Step, StorageNode, graph_of
from fdl.parse import parse

SHAPES = Path(__file__).parent / "shapes"


def graph(name: str) -> Graph:
    return graph_of(parse((SHAPES / f"{name}.yaml").read_bytes()))


def test_an_output_that_an_input_takes_is_an_edge() -> None:
    found = graph("audio-video-workflow")
    assert found.edges == (
        Edge(
            source="shape-av-split",
            target="shape-av-objects",
            place=StorageNode(path="shape-av/video", suffixes=("avi",)),
        ),
        Edge(
            source="shape-av-split",
            target="shape-av-subtitles",
            place=StorageNode(path="shape-av/audio", suffixes=("wav",)),
        ),
    )
    assert found.entries == ((StorageNode(path="shape-av/start"), "shape-av-split"),)
    assert [name for name, _ in found.exits] == ["shape-av-subtitles", "shape-av-objects"]
    assert [step.device for step in found.steps] == ["", "", "1 × any device"]


def test_as_text() -> None:
    assert text(graph("two-providers")) == (
        "shape-anonymise/input\n"
        "└─▶ shape-anonymise\n"
        "    ├─▶ shape-mask/intermediate\n"
        "    │   └─▶ shape-mask-detector\n"
        "    │       └─▶ shape-mask/result\n"
        "    └─▶ shape-anonymise/output\n"
    )


def test_as_text_in_ascii() -> None:
    drawn = text(graph("two-providers"), ASCII_BRANCHES)
    assert drawn.splitlines()[:3] == [
        "shape-anonymise/input",
        "`-> shape-anonymise",
        "    |-> shape-mask/intermediate",
    ]


def step(name: str) -> Step:
    return Step(name=name, device="")


def test_a_function_that_several_places_start_is_drawn_out_once() -> None:
    place = StorageNode(path="in")
    joined = Graph(
        steps=(step("a"), step("b"), step("c")),
        edges=(
            Edge(source="a", target="c", place=StorageNode(path="x")),
            Edge(source="b", target="c", place=StorageNode(path="y")),
        ),
        entries=((place, "a"), (place, "b")),
        exits=(("c", StorageNode(path="out")),),
    )
    assert text(joined).splitlines() == [
        "in",
        "├─▶ a",
        "│   └─▶ x",
        "│       └─▶ c",
        "│           └─▶ out",
        "└─▶ b",
        "    └─▶ y",
        "        └─▶ c  (above)",
    ]


def test_functions_that_start_each_other_and_one_that_nothing_starts() -> None:
    place = StorageNode(path="x")
    loop = Graph(
        steps=(step("a"), step("b"), step("alone")),
        edges=(
            Edge(source="a", target="b", place=place),
            Edge(source="b", target="a", place=place),
        ),
        entries=(),
        exits=(),
    )
    assert text(loop).splitlines() == [
        "a",
        "└─▶ x",
        "    └─▶ b",
        "        └─▶ x",
        "            └─▶ a  (above)",
        "alone",
    ]


def test_for_graphviz() -> None:
    lines = dot(graph("paper-figure-4")).splitlines()
    assert lines[0] == "digraph workflow {"
    assert '  "shape-gpu-blast" -> "s3:shape-blast-output/answers";' in lines
    assert any("4096 MiB" in line and "palegreen" in line for line in lines)


def test_for_mermaid() -> None:
    assert mermaid(graph("audio-video-workflow")) == (
        "flowchart LR\n"
        "  classDef device fill:#e8f3e8,stroke:#2d7a2d\n"
        '  f0["shape-av-split"]\n'
        '  f1["shape-av-subtitles"]\n'
        '  f2["shape-av-objects<br/>1 × any device"]:::device\n'
        '  s0(["shape-av/start"])\n'
        '  s1(["shape-av/result"])\n'
        "  s0 --> f0\n"
        '  f0 -- "shape-av/video *avi" --> f2\n'
        '  f0 -- "shape-av/audio *wav" --> f1\n'
        "  f1 --> s1\n"
        "  f2 --> s1\n"
    )


def test_labels_of_mermaid_hold_any_character() -> None:
    """Of the characters that would end or format a label each is an entity."""
    text = "functions:\n  aws:\n  - lambda: {name: a, input: [{path: one, suffix: '\"<b>`#&'}]}\n"
    drawn = mermaid(graph_of(parse(text)))
    assert '  s0(["one *#quot;#lt;b#gt;#96;#35;#amp;"])\n' in drawn


#: The lines that a drawing for Mermaid consists of.
STATEMENT = re.compile(
    r"""flowchart\ LR | \ \ (classDef\ .* | end | subgraph\ g\d+\ \["[^"]+"\]
    | f\d+\["[^"]+"\](:::device)? | s\d+\(\["[^"]+"\]\)
    | [fs]\d+\ (--\ "[^"]+"\ )?-->\ [fs]\d+)""",
    re.VERBOSE,
)


@pytest.mark.parametrize("path", sorted(SHAPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_drawing_for_mermaid_consists_of_statements_and_has_every_function(path: Path) -> None:
    found = graph_of(parse(path.read_bytes()))
    lines = mermaid(found).splitlines()
    assert [line for line in lines if not STATEMENT.fullmatch(line)] == []
    assert sum(bool(re.match(r"  f\d+\[", line)) for line in lines) == len(found.steps)


def test_a_loop_can_be_drawn_too() -> None:
    text = (
        "functions:\n  aws:\n"
        "  - lambda: {name: a, input: [{path: one}], output: [{path: two}]}\n"
        "  - lambda: {name: b, input: [{path: two}], output: [{path: one}]}\n"
    )
    found = graph_of(parse(text))
    assert len(found.edges) == 2
    assert mermaid(found).count(" --> ") == 2
