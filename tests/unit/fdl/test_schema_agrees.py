"""The reader and the JSON Schema agree on one generated corpus: every key, with many values.

What the reader takes, the schema takes. What the reader refuses, the schema refuses, but for what a
schema cannot express: how a value was written (quotes, `1e3`), rules of names, and keys together.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from corekit.errors import AppError
from fdl.keys.document import json_schema
from fdl.keys.reference import KeyStatus, KnownKey, known_keys
from fdl.parse import read
from fdl.schema.scalars import Choice, Flag, Percent, Version
from fdl.schema.schema import Block, ListOf, MapOf
from fdl.text.compose import compose
from fdl.text.nodes import Mapping, Node, Scalar, Sequence

jsonschema_rs = pytest.importorskip("jsonschema_rs")
_VALUES = """
~ null "" 0 1 3 30 128 900 0400 -1 +5 1.5 4.5 true yes No 'yes' text '5' a-bucket a-bucket/in
[] {} [a-bucket] [1] [~] 4GiB 10m 25% 12.4 550 v1 arn:aws:iam::123456789012:role/x arn:x s3
minio.a cuda x86_64 [arm64] result pack shared builtin batch INFO Event None us-east-1
python3.12 image run.sh -x m.f /mnt/x 2020-01-01 1e3 .inf 0x10 [[a]]
"""
VALUES = (
    *_VALUES.split(),
    *("", "two words", "{a: b}", "{KEY: value}", "' 4 GiB '", "' 25 % '", "[cuda, cpu]"),
    *("[{path: a-bucket}]", "{path: a-bucket}", "{Variables: {A: 1}}", "{Variables: }"),
    *("{name: q}", "{bucket: a-bucket}", "{x-mine: 1}"),
    *(
        "https://hooks.example/x",
        "https://lab.example",
        "arn:aws:sns:us-east-1:123456789012:ends",
        "'ssm:/key'",
    ),
    *("'0 3 * * *'", "UTC", "cloudevents"),
)
#: A value of each key that its block cannot be without.
NEEDED = {
    "name": "f",
    "path": "a-bucket",
    "Arn": "arn:x",
    "LocalMountPath": "/mnt/x",
    "steps": "[f]",
    "execution": "3s",
    "queue": "q",
    "url": "https://fn.example/f",
    "definition": "d",
    "cron": "'0 3 * * *'",
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def value_of(node: Node) -> Any:
    """As an editor reads it, by the core schema of YAML 1.2."""
    match node:
        case Mapping():
            return {entry.key: value_of(entry.value) for entry in node.entries}
        case Sequence():
            return [value_of(item) for item in node.items]
        case Scalar(text=text):
            return _scalar(node, text)


def _scalar(node: Scalar, text: str) -> Any:
    if node.is_null:
        return None
    if not node.plain:
        return text
    if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return text.lower() == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _needed(known: KnownKey, siblings: list[KnownKey]) -> list[str]:
    if known.path.endswith(("notify[].secret", "notify[].format")):
        return ["webhook: https://hooks.example/x"]
    if known.path.endswith(("endpoint.idle_s", "endpoint.call_s", "endpoint.calls_max")):
        return ["enabled: false"]  # one that answers calls needs keys of its function
    return [
        f"{name}: {NEEDED[name]}"
        for other in siblings
        if other.key.required
        and (name := other.path.rpartition(".")[2]) in NEEDED
        and other.path != known.path
    ]


def _files() -> Iterator[tuple[KnownKey, str, str]]:
    keys = [known for known in known_keys() if known.status is not KeyStatus.TRANSLATED]
    for known in keys:
        siblings = [k for k in keys if k.path.rpartition(".")[0] == known.path.rpartition(".")[0]]
        for value in VALUES:
            yield known, value, _file(known.path, [*_needed(known, siblings), ""], value)


def _file(path: str, beside: list[str], value: str) -> str:
    words = path.split(".")
    text = ", ".join(filter(None, [*beside, f"{words[-1]}: {value}"]))
    for word in reversed(words[:-1]):
        inner = f"{{{text}}}"
        if word in ("aws[]", "aws") and "lambda:" not in inner:
            inner = f"{{lambda: {{name: f}}, {text}}}"
        if word == "lambda" and "name:" not in text.split("{")[0]:
            inner = f"{{name: f, {text}}}"
        if word == "NAME" and words[0] == "workflows" and "steps:" not in inner:
            inner = f"{{steps: [f], {text}}}"
        name = word.removesuffix("[]")
        text = f"{name}: [{inner}]" if word.endswith("[]") else f"{name}: {inner}"
    return f"{{{text}}}\n" if "functions:" in text else f"{{functions: {{aws: []}}, {text}}}\n"


#: Kinds of values that a schema can express completely.
_SAYS_ALL = (Choice, Flag, Block, MapOf, Version, Percent)


def _says_all(known: KnownKey, value: str) -> bool:
    reader = known.key.reader
    item = reader.item if isinstance(reader, ListOf) else reader
    if isinstance(item, Block) and item.short is not None:
        return False  # a lone value is a name, with rules of its own
    if known.path.endswith("endpoint.enabled"):
        return False  # needs keys of its function
    written = value.startswith(("'", "[", "{")) or value in ("0400", "+5", "1e3", "4.5", "1.5")
    return isinstance(item, _SAYS_ALL) and not written


@dataclass(frozen=True)
class Judged:
    """One file of the corpus."""

    known: KnownKey
    value: str
    reader: bool | None  #: None: it was rewritten before
    schema: bool


@pytest.fixture(scope="module")
def judged() -> list[Judged]:
    validator = jsonschema_rs.validator_for(json_schema())
    found = []
    for known, value, text in _files():
        composed = compose(text, "f")
        try:
            reader = None if read(composed)[0].rewrites else True
        except AppError:
            reader = False
        schema = validator.is_valid(value_of(composed.root))
        found.append(Judged(known, value, reader, schema))
    return found


def test_the_schema_accepts_all_that_the_reader_accepts(judged: list[Judged]) -> None:
    taken = [one for one in judged if one.reader]
    assert [(one.known.path, one.value) for one in taken if not one.schema] == []
    assert len(taken) > 1000


def test_the_schema_refuses_all_that_the_reader_refuses(judged: list[Judged]) -> None:
    refused = [one for one in judged if one.reader is False and _says_all(one.known, one.value)]
    assert [(one.known.path, one.value) for one in refused if one.schema] == []
    assert len(refused) > 1000


def test_every_key_is_taken_with_some_value(judged: list[Judged]) -> None:
    """The corpus reaches every key: none is refused by both for a reason of the test's own."""
    reached = {one.known.path for one in judged if one.reader is not False}
    gone = (KeyStatus.REFUSED, KeyStatus.TRANSLATED)
    refused = {known.path for known in known_keys() if known.status in gone}
    assert {known.path for known in known_keys()} - refused - reached == set()
