"""Parameters of one input: user metadata of its object, which reach every job about it.

`orchgpu run --set K=V` stores them as one JSON object of texts in the entry `orchgpu-set`
(`x-amz-meta-orchgpu-set`), written in ASCII as headers are. S3 takes 2 KiB of metadata in all; ours
is smaller, because the entries of an upload by `orchgpu run` lie beside it. The metadata that other
tools stored reaches the jobs too. Both are read with the version of the object that the job reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

#: The entry of an input that opens an endpoint: its job answers calls.
ENDPOINT = "orchgpu-endpoint"
SET = "orchgpu-set"
#: Of the entry, as JSON.
SET_BYTES_MAX = 1536
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
#: Begins the variable of a parameter: no other variable begins so, and a definition cannot.
PREFIX = "ORCHGPU_PARAM_"
#: The variable with the metadata of other tools, as a JSON object.
METADATA = "INPUT_METADATA"


def named_values(given: Iterable[str]) -> dict[str, str]:
    """Texts `NAME=VALUE` by name. Raises ValueError."""
    found: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals:
            raise ValueError(f"{one!r:.100}: write NAME=VALUE")
        if name in found:
            raise ValueError(f"{name:.70}: given twice")
        found[name] = value
    return found


def set_text(parameters: Mapping[str, str]) -> str:
    """The entry of these parameters; "" for none. Raises ValueError for what cannot be one."""
    if not parameters:
        return ""
    for name, value in parameters.items():
        if fault := _fault(name, value):
            raise ValueError(fault)
    text = json.dumps(dict(sorted(parameters.items())), separators=(",", ":"))
    if len(text) > SET_BYTES_MAX:
        raise ValueError(
            f"the parameters are {len(text)} bytes of JSON, and the metadata of an object holds"
            f" {SET_BYTES_MAX} of them: put large values into a file"
        )
    return text


def seen_by_jobs(metadata: Mapping[str, str]) -> dict[str, str]:
    """The part of an input's metadata that its jobs see: without our own notes about it."""
    return {
        name: value
        for name, value in metadata.items()
        if name in (SET, ENDPOINT) or not name.startswith("orchgpu-")
    }


def parameters_in(metadata: Mapping[str, str]) -> dict[str, str]:
    """The parameters by name. Raises ValueError for an entry that is not one of `set_text`."""
    text = metadata.get(SET)
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"the metadata {SET!r} of the input is not a JSON object of texts")
    for name, value in found.items():
        if fault := _fault(name, value):
            raise ValueError(f"the metadata {SET!r} of the input: {fault}")
    return dict(found)


def variables_in(metadata: Mapping[str, str]) -> dict[str, str]:
    """The variables of the user's code. Raises ValueError as `parameters_in` does."""
    found = {f"{PREFIX}{name}": value for name, value in parameters_in(metadata).items()}
    others = {name: value for name, value in metadata.items() if name not in (SET, ENDPOINT)}
    return found | ({METADATA: json.dumps(others, sort_keys=True)} if others else {})


def _fault(name: str, value: object) -> str:
    """The reason against a name with a value as a parameter; "" = it is one."""
    if not NAME.fullmatch(name):
        return f"{name[:70]!r} is not a name of a parameter (letters, digits and _, up to 64)"
    if not isinstance(value, str) or "\0" in value:
        return f"the value of {name} is not a text without NUL"
    try:
        value.encode()
    except UnicodeEncodeError:
        return f"the value of {name} is not Unicode text"
    return ""
