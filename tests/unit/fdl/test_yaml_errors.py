"""Invalid YAML, and YAML outside of the subset: explanations with line, column and caret."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corekit.errors import AppError
from fdl.text.compose import compose

FAULTS = {
    "tab": ("a:\n\tb: 1\n", "2:1", "a tab: YAML indents with spaces"),
    "tab after a key": ("a:\tb\n", "1:3", "a tab"),
    "open to the end": ("a: [1, 2\n", "1:4", "the '[' that opens here is never closed"),
    "tab before a bracket": ("a:\t{b: 1}\n", "1:3", "a tab"),
    "open quote": ('a: 1\nb: "abc\nc: 2\n', "2:4", "the quote that opens here is never closed"),
    "open single quote": ("a: 'abc\nb: 2\n", "1:4", "the quote that opens here"),
    "quote to the next document": ('a: "abc\n---\nb: 2\n', "1:4", "the quote that opens here"),
    "open list": ("a: [1, 2\nb: 3\n", "2:2", "the '[' on line 1, column 4 is still open"),
    "open mapping": ("a: {b: 1\nc: 2\n", "2:2", "the '{' on line 1, column 4 is still open"),
    "open at the end": ("a: [", "1:5", "a ']' or '}' is missing"),
    "wrong bracket": ("a: [1}\n", "1:6", "',' or ']' is missing"),
    "bracket too many": ("a: {b: 1}}\n", "1:10", "'}' closes nothing that is open here"),
    "lone bracket": ("a: ]\n", "1:4", "']' closes nothing"),
    "two colons": ("a: b: c\n", "1:5", "a second ': ' on one line: put quotes around the value"),
    "deeper": ("a: b\n  c: d\n", "2:4", "indented deeper than line 1, which has its value"),
    "deeper below": ("a:\n  b: 1\n   c: 2\n", "3:5", "indented deeper than line 2"),
    "shallower": ("a:\n    b: 1\n  c: 2\n", "3:3", "indented otherwise than the lines"),
    "first line indented": (" a: 1\nb: 2\n", "2:1", "indented otherwise than the first line"),
    "item among keys": ("a: 1\n- b\n", "2:1", "a '- ' item among keys, which begin on line 1"),
    "key among items": ("- b\na: 1\n", "2:1", "a key among '- ' items"),
    "item beside its key": ("a: - b\n", "1:4", "a '- ' item begins on a line of its own"),
    "no colon": ("a: 1\nbcd\ne: 2\n", "2:1", "a line without ': '"),
    "no blank": ("a:1\nb: 2\n", "2:2", "line 1 above has no ': '"),
    "text after a quote": ('a: "b" c\n', "1:8", "text follows the end of a value"),
    "shell's star": ("a: [*.txt]\n", "1:5", "a value that begins with * needs quotes"),
    "alias": ("a: *x\n", "1:4", "the alias *x: write the value out, or quote it"),
    "anchor": ("a: &x 1\n", "1:4", "the anchor &x is not allowed here"),
    "ampersand": ("a: & 1\n", "1:4", "a value that begins with & needs quotes"),
    "tag": ("a: !x 1\n", "1:4", "the tag !x is not allowed here"),
    "odd tag": ("a: !<x 1\n", "1:4", "a value that begins with ! needs quotes"),
    "foreign tag": ("a: !e!x 1\n", "1:4", "a value that begins with ! needs quotes"),
    "percent sign": ("a: %x\n", "1:4", "a value cannot begin with %: put quotes around it"),
    "at sign": ("a: @x\n", "1:4", "a value cannot begin with @"),
    "backtick": ("a: `x`\n", "1:4", "a value cannot begin with `"),
    "bar": ("a: | x\n", "1:4", "after | or > a text begins on the next line"),
    "unknown escape": (
        'a: "\\d+"\n',
        "1:6",
        "\\d is not a valid escape inside double quotes: write \\\\d",
    ),
    "short escape": ('a: "\\xZZ"\n', "1:7", "the escape needs 2 hexadecimal digits"),
    "escape of nothing": ('a: "\\U99999999"\n', "1:7", "has a number that is too large"),
    "two documents": ("a: 1\n---\nb: 2\n", "2:1", "a second document begins here"),
    "after the end": ("a: 1\n...\nb: 2\n", "3:1", "the document ended on line 2 ('...')"),
    "directive": ("%YAML 1.1\na: 1\n", "1:1", "directives (%YAML, %TAG) are not allowed here"),
    "old directive": ("%YAML 2.0\n---\na: 1\n", "1:1", "directives"),
    "two directives": ("%YAML 1.1\n%YAML 1.1\n---\na: 1\n", "2:1", "directives"),
    "twice": ("a: 1\nb: 2\na: 3\n", "3:1", "'a' is written twice, first on line 1; keep one"),
    "merge": ("<<: {a: 1}\n", "1:1", "<< merges mappings: write the keys out"),
    "two commas": ("a: [1,,2]\n", "1:7", "nothing stands before this comma"),
    "control character": ("a: b\nc: x\x07y\n", "2:5", "the character U+0007 is not allowed"),
    "long key": ("x" * 1100 + ": 1\n", "1:1101", "a key has at most 1024 characters"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_an_error_of_yaml_is_explained(case: str) -> None:
    text, place, words = FAULTS[case]
    with pytest.raises(AppError) as caught:
        compose(text, "f.yaml")
    first, *excerpt = caught.value.message.split("\n")
    assert words in first
    assert first.startswith(f"f.yaml:{place}: error: ")
    assert excerpt == [] or excerpt[-1].endswith("^")


BYTES = {
    "latin": (b"a: 1\nb: caf\xe9 x\n", "f.yaml:2:7: error: byte 0xe9 is not UTF-8"),
    "after wide text": ("ü: ".encode() + b"\xff\n", "f.yaml:1:4: error: byte 0xff"),
    "cut off": ("a: ü".encode()[:-1], "f.yaml:1:4: error: byte 0xc3"),
    "UTF-16": ("a: 1".encode("utf-16"), "f.yaml:1:1: error: the file is in UTF-16; save it"),
}


@pytest.mark.parametrize("case", BYTES)
def test_text_that_is_not_utf8_is_reported_with_column_and_excerpt(case: str) -> None:
    data, message = BYTES[case]
    with pytest.raises(AppError) as caught:
        compose(data, "f.yaml")
    assert caught.value.message.startswith(message)
    assert case == "UTF-16" or caught.value.message.endswith("^")


GOOD = """\
functions:
  aws:
  - lambda:
      name: a
      description: "one: \\"two\\" 'three'"
      input: [{path: buc/in, suffix: ['.txt', .csv]}]
      environment: {Variables: {A: 1, B: |-}}
    # a comment
    gpu: {memory: 4GiB}
"""
#: PyYAML's own terms, which authors of files do not know.
JARGON = re.compile(r"token|<block|block (mapping|sequence|end)|stream|scalar|flow|simple key|node")

#: Marks of YAML, and characters that it does not take.
MARKS = [*"\t'\"[]{}:*&!%|>@`?,#\\\x00\x85\u202e", "", ": ", "\n", "- ", "---\n", "...\n", "  "]


@settings(max_examples=400)
@given(
    st.lists(
        st.tuples(
            st.integers(0, len(GOOD)),
            st.integers(0, 2),
            st.sampled_from(MARKS),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_no_broken_text_gives_a_message_of_pyyaml(
    edits: list[tuple[int, int, str]],
) -> None:
    text = GOOD
    for at, dropped, new in edits:
        text = text[:at] + new + text[at + dropped :]
    problem = ""
    try:
        compose(text, "f.yaml")
    except AppError as error:
        problem = str(error.details["problem"])
    assert not JARGON.search(problem)
