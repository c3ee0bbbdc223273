"""Retired words and patterns stay retired, in comments, docstrings, messages and pages.

Each pattern was a word of a private dialect, or a sentence over which a reader of this field
stumbles; its reason names the words to write instead. Data on the wire keeps its words (`door`).
"""

from __future__ import annotations

import functools
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.tidy.tracked import ROOT, outside, tracked

#: pattern → what to write instead
RETIRED = {
    r"(?<!there )\b(?:is|are) no (?!longer\b|more\b|such\b|less\b|\d)": "is not a valid …",
    r"\b(?:somebody|anybody|everybody|nobody)\b": "the noun: a client, a process, a session",
    r"\b(?:whoever|whosoever)\b": "a client that …",
    r"\bfor ever\b": "indefinitely, without end",
    r"\banew\b": "again",
    r"\bseldom\b": "rarely",
    r"\bin vain\b": "without success",
    r"\bof no use\b": "needless",
    r"\bso long from now\b": "after this duration",
    r"\b(?:tells?|told|telling)\b": "report, name, state",
    r"\b(?:says|said|saying)\b": "report, state, define; a message, a value",
    r"\bobeys?\b": "serves, enforces, keeps",
    r"\bblames?\b": "names as the cause",
    r"\bgoes on\b": "continues",
    r"\bset aside\b": "suspended, unresponsive",
    r"\bkins?\b": "request class",
    r"\bcalm(?:est)?\b": "least loaded",
    r"\bbench(?:ed)? (?:its|the) lines\b": "suspend its requests",
    r"\ba bug of ours\b": "internal error",
    r"\bwhole number\b": "integer",
    r"\blent device\b": "device of a lease",
}
#: Words at the beginning of a docstring: it names a thing or an effect, not a question.
QUESTIONS = re.compile(r'^[rf]?"""(?:What|Who|Whose|Whom|How|Where|Which)\b')


def sources() -> list[Path]:
    """The product and its pages; the changelog tells of old names."""
    others = ("tests/", "benchmarks/", "tools/", "fdl/examples/", "CHANGELOG.md")
    return [path for path in tracked("*.py", "*.md") if outside(path, *others)]


@functools.cache
def prose(path: Path) -> tuple[tuple[int, str], ...]:
    """The prose of a file by line; read once for all patterns."""
    return tuple(_prose(path))


def _prose(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of comments and strings of a module; all lines of a page."""
    text = path.read_text()
    if path.suffix == ".md":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield from enumerate(token.string.splitlines(), token.start[0])


def found_in(lines: Iterable[tuple[int, str]], pattern: str) -> list[int]:
    """Numbers of the lines with the pattern."""
    compiled = re.compile(pattern, re.IGNORECASE)
    return [number for number, line in lines if compiled.search(line)]


@pytest.mark.parametrize("pattern", RETIRED)
def test_retired_words_do_not_come_back(pattern: str) -> None:
    places = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources()
        for number in found_in(prose(path), pattern)
    ]
    assert not places, f"write instead: {RETIRED[pattern]}"


def test_a_docstring_begins_with_what_the_thing_is_or_does() -> None:
    places = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources()
        if path.suffix == ".py"
        for number, line in prose(path)
        if QUESTIONS.match(line)
    ]
    assert not places


def test_a_retired_word_is_found() -> None:
    lines = [(1, "Nothing."), (2, "# it waits for ever")]
    assert found_in(lines, r"\bfor ever\b") == [2]
    assert QUESTIONS.match('"""What the journal stores."""')
