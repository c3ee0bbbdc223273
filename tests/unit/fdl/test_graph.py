"""Workflows: edges by paths, and the three ways to draw them."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from fdl.graph.drawing import columns, dot, svg, terminal
from fdl.graph.graph import DeployTarget, Edge, Graph, graph_of
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
            place=DeployTarget(path="shape-av/video", suffixes=("avi",)),
        ),
        Edge(
            source="shape-av-split",
            target="shape-av-subtitles",
            place=DeployTarget(path="shape-av/audio", suffixes=("wav",)),
        ),
    )
    assert found.entries == ((DeployTarget(path="shape-av/start"), "shape-av-split"),)
    assert [name for name, _ in found.exits] == ["shape-av-subtitles", "shape-av-objects"]
    assert [step.device for step in found.steps] == ["", "", "1 × any device"]
    assert columns(found) == {"shape-av-split": 0, "shape-av-subtitles": 1, "shape-av-objects": 1}


def test_for_a_terminal() -> None:
    assert terminal(graph("two-providers")) == (
        "  shape-anonymise ─ shape-mask/intermediate ─▶\n"
        "shape-mask-detector\n"
        "  ─▶ shape-mask/result\n\n"
        "  shape-anonymise/input ─▶\n"
        "shape-anonymise\n"
        "  ─ shape-mask/intermediate ─▶ shape-mask-detector\n"
        "  ─▶ shape-anonymise/output\n"
    )


def test_for_graphviz() -> None:
    lines = dot(graph("paper-figure-4")).splitlines()
    assert lines[0] == "digraph workflow {"
    assert '  "shape-gpu-blast" -> "s3:shape-blast-output/answers";' in lines
    assert any("4096 MiB" in line and "palegreen" in line for line in lines)


@pytest.mark.parametrize("path", sorted(SHAPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_picture_is_well_formed_and_holds_every_function(path: Path) -> None:
    found = graph_of(parse(path.read_bytes()))
    root = ElementTree.fromstring(svg(found))
    boxes = [e for e in root if e.tag.endswith("rect")]
    assert len(boxes) == len(found.steps)
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    for box in boxes:
        x, y, w, h = (float(box.get(name, -1)) for name in ("x", "y", "width", "height"))
        assert x >= 0
        assert y >= 0
        assert x + w <= width
        assert y + h <= height


def test_a_loop_can_be_drawn_too() -> None:
    text = (
        "functions:\n  aws:\n"
        "  - lambda: {name: a, input: [{path: one}], output: [{path: two}]}\n"
        "  - lambda: {name: b, input: [{path: two}], output: [{path: one}]}\n"
    )
    found = graph_of(parse(text))
    assert len(found.edges) == 2
    assert svg(found).count("<rect") == 2
