"""One style for definitions: meaning, comments and order stay; doing it twice changes nothing."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corekit.values import replace
from fdl.migrate.migrate import migrate
from fdl.schema.schema import Reading
from fdl.text.compose import Composed, compose
from fdl.text.nodes import Entry, Location, Mapping, Node, Scalar, Sequence, Source
from fdl.text.render import render

HERE = Location(1, 1)
SHAPES = sorted((Path(__file__).parent / "shapes").glob("*.yaml"))


def formatted(text: str) -> str:
    composed = compose(text, "f")
    return render(composed, composed.root)


def bare(node: Node) -> Node:
    """Without places and styles: what it means."""
    match node:
        case Scalar():
            return Scalar(text="" if node.is_null else node.text, plain=node.plain, at=HERE)
        case Sequence():
            return Sequence(items=tuple(bare(item) for item in node.items), at=HERE)
        case Mapping():
            entries = tuple(replace(e, at=HERE, value=bare(e.value)) for e in node.entries)
            return Mapping(entries=entries, at=HERE)


UGLY = """\
# about all
functions:


    aws:   # the functions
        -   lambda:
                name:   "a"      # quoted
                # before memory
                memory:    512
                input: [ {path: x/y,suffix: [.a,   .b]} ]
                description: >-   # in short
                    folded
                    text
                environment: {Variables: {
                    LONG: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa,   # in the middle
                    OTHER: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb}}
            gpu:
x-note: |  # as it is
    two
      lines # no comment
# the end
"""
NEAT = """\
# about all
functions:

  aws:     # the functions
  - lambda:
      name: "a"                  # quoted
      # before memory
      memory: 512
      input: [{path: x/y, suffix: [.a, .b]}]
      description: "folded text"  # in short
      environment:
        Variables:
          LONG: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa              # in the middle
          OTHER: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
    gpu:
x-note: |  # as it is
  two
    lines # no comment
# the end
"""


def test_the_style() -> None:
    assert formatted(UGLY) == NEAT
    assert formatted(NEAT) == NEAT


@pytest.mark.parametrize("path", SHAPES, ids=lambda path: path.stem)
def test_a_shape_keeps_its_meaning_and_its_comments(path: Path) -> None:
    composed = compose(path.read_bytes(), path.name)
    text = render(composed, composed.root)
    again = compose(text, "again")
    assert bare(again.root) == bare(composed.root)
    assert [c.text for c in again.comments()] == [c.text for c in composed.comments()]
    assert render(again, again.root) == text


@pytest.mark.parametrize("path", SHAPES, ids=lambda path: path.stem)
def test_a_migrated_shape_keeps_its_meaning(path: Path) -> None:
    composed = compose(path.read_bytes(), path.name)
    root, _ = migrate(composed.root, Reading(source=composed.source))
    assert bare(compose(render(composed, root), "again").root) == bare(root)


PLAIN = ["a", "10", "1.10", "true", "x y", "", "~", "s3://a/b", "a#b", "-1", "it's", "a:b", "<<x"]
QUOTED = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = st.one_of(
    st.sampled_from(PLAIN).map(lambda text: Scalar(text=text, plain=True, at=HERE)),
    QUOTED.map(lambda text: Scalar(text=text, plain=False, at=HERE)),
)
KEYS = st.one_of(st.sampled_from(["a", "lambda", "on", "1", "x-y", "a b", "#"]), QUOTED)


def _mapping(values: dict[str, Node], flow: bool) -> Mapping:
    entries = tuple(Entry(key=key, at=HERE, value=value) for key, value in values.items())
    return Mapping(entries=entries, at=HERE, flow=flow)


NODES: st.SearchStrategy[Node] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.builds(
            lambda items, flow: Sequence(items=tuple(items), at=HERE, flow=flow),
            st.lists(inner, max_size=3),
            st.booleans(),
        ),
        st.builds(_mapping, st.dictionaries(KEYS, inner, max_size=3), st.booleans()),
    ),
    max_leaves=8,
)


@settings(max_examples=60)
@given(st.builds(_mapping, st.dictionaries(KEYS, NODES, min_size=1, max_size=3), st.booleans()))
def test_any_nodes_come_back_from_their_text(root: Mapping) -> None:
    text = render(Composed(source=Source(name="", text=""), root=root, spans=()), root)
    again = compose(text, "f")
    assert bare(again.root) == bare(root)
    assert render(again, again.root) == text
