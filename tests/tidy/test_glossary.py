"""Every domain word in a class or module name of the cores is in the glossary."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORES = (
    "gpu_scheduler/core",
    "gpu_scheduler/protocol",
    "gpu_scheduler/model.py",
    "orchgpu/core",
    "local_cloud/model",
    "fdl",
)

#: Endings that `stem` replaces, and the letters that must remain: "notes" is no form of "not".
ENDINGS = (
    ("ies", "y", 3),
    ("ing", "", 4),
    ("ed", "", 4),
    ("es", "", 4),
    ("s", "", 2),
    ("e", "", 4),
)

#: Words of plain English and of any program: verbs and nouns for data, files, parsing, calls and
#: time, and names of general standards (YAML, CRC, VPC). The test for a new one: an engineer who
#: has never seen a scheduler or a cloud knows it, and it has no special meaning here. A word of
#: scheduling, leasing, deployment or of a cloud belongs on the page, with its meaning.
ORDINARY = """
access ahead amount asked attributes began broken buffer codec comment compose composed composer
config crc current digest document done drawing due duration element facts failure fault faulty flow
happened init integer left mark missing noticed null parse parser pattern post render repeat
reply row said schema send sequence settings shapes split system table ticked told unknown vpc wake
wanted wildcard writer yaml
"""


def words_of(identifier: str) -> list[str]:
    """The lower-case words of a CamelCase or snake_case name: `S3Event` gives s3 and event."""
    parts = re.findall(r"[A-Z]+\d*(?![a-z])|[A-Z]?[a-z]+\d*", identifier)
    return [part.lower() for part in parts]


def stem(word: str) -> str:
    """A word without its plural, -ed or -ing and the letter that these double."""
    for ending, replacement, rest in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= rest:
            word = word.removesuffix(ending) + replacement
            break
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] else word


def known_stems(page: str) -> set[str]:
    return {stem(word) for word in re.findall(r"[a-z]+\d*", page.lower() + ORDINARY)}


def unexplained(names: Iterable[str], known: set[str]) -> dict[str, str]:
    """The words that are not known, each with a name that contains it."""
    return {word: name for name in names for word in words_of(name) if stem(word) not in known}


def names_of_the_cores() -> Iterator[str]:
    for core in CORES:
        root = ROOT / core
        for path in sorted([root] if root.is_file() else root.rglob("*.py")):
            if "examples" in path.relative_to(ROOT).parts:
                continue
            yield path.parent.name
            yield path.stem
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    yield node.name


def test_every_word_of_the_cores_is_in_the_glossary() -> None:
    page = (ROOT / "docs/reference/glossary.md").read_text()
    assert unexplained(names_of_the_cores(), known_stems(page)) == {}


def test_every_word_has_one_row() -> None:
    page = (ROOT / "docs/reference/glossary.md").read_text()
    heads = Counter(re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE))
    assert [head for head, rows in heads.items() if rows > 1 and head not in ("word", "---")] == []


def test_a_class_with_an_unknown_word_is_found() -> None:
    known = known_stems("lease | shares of devices\nrequest class | waiting requests")
    assert unexplained(["LeaseKin", "request_class", "Devices"], known) == {"kin": "LeaseKin"}


@pytest.mark.parametrize(
    ("identifier", "words"),
    [
        ("HeadReservation", ["head", "reservation"]),
        ("S3Event", ["s3", "event"]),
        ("_S3Path", ["s3", "path"]),
        ("post_policy", ["post", "policy"]),
        ("IAMRole", ["iam", "role"]),
    ],
)
def test_an_identifier_is_split_into_words(identifier: str, words: list[str]) -> None:
    assert words_of(identifier) == words


@pytest.mark.parametrize(
    ("form", "word"),
    [
        ("policies", "policy"),
        ("granted", "grant"),
        ("dropped", "drop"),
        ("staging", "stage"),
        ("classes", "class"),
        ("ops", "op"),
    ],
)
def test_forms_of_a_word_have_one_stem(form: str, word: str) -> None:
    assert stem(form) == stem(word)


def test_a_short_word_keeps_its_ending() -> None:
    assert stem("notes") != stem("not")
