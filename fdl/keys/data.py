"""The key `data:`: data sets and models that the function's device should have near it.

Each has a source with one content: a place that hosts fetch it from, or a folder of the host.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from corekit.errors import AppError
from corekit.units import parse_memory_mib
from fdl.beside_device import DeclaredData
from fdl.schema.schema import MapOf, Reading, Schema
from fdl.text.nodes import Mapping, Node, Scalar, kind_of
from gpu_scheduler.data_names import NAME_PATTERN, REFERENCE_PATTERN, name_of
from gpu_scheduler.data_sets import SET_BYTES_MAX, source_problem

_FORM = "`s3://…`, `hf://…@…`, `oci://…@sha256:…`, `https://…#sha256=…` or `host:NAME`"
_PATTERN = "^(s3://|hf://|oci://|https://|host:)."
_HOST = "host:"


@dataclass(frozen=True, slots=True)
class _Data:
    """A source, or a mapping of `source` and `size`."""

    def read(self, node: Node, path: str, reading: Reading) -> DeclaredData:
        if isinstance(node, Scalar) and not node.is_null:
            return DeclaredData(source=_source(node, path, reading))
        if not isinstance(node, Mapping):
            raise reading.error(node, path, f"expected a source, got {kind_of(node)}")
        found = {entry.key: entry for entry in node.entries}
        for key in found.keys() - {"source", "size"}:
            message = f"{path}: {key[:60]!r} is not a key here; the keys are source and size"
            raise reading.source.error(found[key].at, message)
        if "source" not in found:
            raise reading.error(node, path, "`source` is missing")
        source = _source(found["source"].value, f"{path}.source", reading)
        if "size" not in found:
            return DeclaredData(source=source)
        return DeclaredData(source=source, bytes=_bytes(found["size"].value, path, reading))

    def describe(self) -> str:
        return f"{_FORM}; or a mapping of `source` and `size`"

    def schema(self) -> Schema:
        source: Schema = {"type": "string", "pattern": _PATTERN}
        size: Schema = {"type": ["string", "integer"]}
        both: Schema = {
            "type": "object",
            "properties": {"source": source, "size": size},
            "required": ["source"],
            "additionalProperties": False,
        }
        return {"anyOf": [source, both]}


def _source(node: Node, path: str, reading: Reading) -> str:
    if not isinstance(node, Scalar) or node.is_null:
        raise reading.error(node, path, f"expected a source: {_FORM}")
    text = node.text
    if text.startswith(_HOST):
        reference = text.removeprefix(_HOST)
        if re.fullmatch(REFERENCE_PATTERN, reference, re.ASCII) is None:
            raise reading.error(node, path, f"{text!r:.100} names no data of a host: host:NAME")
        if (name := path.removesuffix(".source").rpartition(".")[2]) != name_of(reference):
            message = f"a folder of the host keeps its name: write `{name_of(reference)}`, not"
            raise reading.error(node, path, f"{message} `{name}`")
        return text
    if (problem := source_problem(text)) is not None:
        raise reading.error(node, path, f"{text!r:.100} {problem}")
    return text


def _bytes(node: Node, path: str, reading: Reading) -> int:
    """The declared size, rounded up to whole MiB."""
    try:
        size_bytes = parse_memory_mib(node.text if isinstance(node, Scalar) else "") << 20
    except AppError:
        message = f"{kind_of(node)} is not a size; write MiB, or a unit as in 4GiB"
        raise reading.error(node, f"{path}.size", message) from None
    if size_bytes > SET_BYTES_MAX:
        raise reading.error(node, f"{path}.size", "more than any data set has")
    return size_bytes


DATA = MapOf(
    item=_Data(),
    key_pattern=NAME_PATTERN,
    key_what="a name of letters, digits, - . and _",
)
