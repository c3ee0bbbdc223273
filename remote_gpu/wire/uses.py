"""Uses of a host by a job: the part of answers and errors of lanes that provenance needs.

    answer  {"ok": …, "ran": …, "used": {"data": {"proteins": "<sha256>"}}}
    error   {"error": {"code": "ENOENT", "message": …, "lacks": {"programs": "blast"}}}

The names of both kinds are those of a request (`gpu: {data: …, programs: …}`).
"""

from __future__ import annotations

from collections.abc import Mapping

#: Names the file to which a program's devices append what they used; set by the runner.
USES_VARIABLE = "ORCHGPU_USES"
DATA, PROGRAMS = "data", "programs"
HOST_KINDS = (DATA, PROGRAMS)
#: Kind → name → SHA-256, "" = not known.
Uses = Mapping[str, Mapping[str, str]]
_NAME_CHARS_MAX = 256


def lacks_in(error: Mapping[str, object]) -> dict[str, str]:
    """The data set or program that an error names as absent from its host: kind → name."""
    lacks = error.get("lacks")
    if not isinstance(lacks, Mapping):
        return {}
    return {
        kind: name
        for kind in HOST_KINDS
        if isinstance(name := lacks.get(kind), str) and len(name) <= _NAME_CHARS_MAX
    }
