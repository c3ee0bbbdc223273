"""Data sets that a function declares, and what hosts have of them. Pure.

A set is named by its source and the digest of its content together: a host that could read a source
for one tenant gives nothing of it to another one that knows only the digest. Hosts publish a hash
of both, as they do for warm keys.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Annotated
from urllib.parse import unquote

from corekit.values import Checked, Meta
from gpu_scheduler.data_names import is_data_name
from gpu_scheduler.names import NAME, name_problem

DATA_SETS_MAX = 64  #: of one request
HELD_MAX = 4096  #: data sets of one host
SET_BYTES_MAX = 2**53  #: the largest integer that every reader of JSON keeps
_DIGITS = 32  #: of a published key: 128 bits
#: The rate of a host that has fetched nothing yet.
DEFAULT_BYTES_PER_S = 100e6
#: The bytes of a set whose size is not known.
UNKNOWN_BYTES = 1 << 30


def _name_problem(text: str) -> str | None:
    return None if is_data_name(text) else "must have letters, digits, - . _ only"


def _digest_problem(text: str) -> str | None:
    is_hex = len(text) == 64 and not text.strip("0123456789abcdef")
    return None if is_hex else "must be 64 hex digits"


SOURCE_CHARACTERS_MAX = 1024
S3_PATTERN = re.compile(
    r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/([^?#]*)(?:\?versionId=([\w.-]+))?", re.ASCII
)
HTTPS_PATTERN = re.compile(r"(https://[^\s#]+)#sha256=([0-9a-f]{64})", re.ASCII)
#: Repository, revision, path. A data set's repository begins with `datasets/`.
HF_PATTERN = re.compile(
    r"hf://((?:datasets/)?\w[\w.-]*(?:/\w[\w.-]*)?)@(\w[\w.-]*)(?:/([^?#]+))?", re.ASCII
)
#: One part of a repository's name, by the distribution specification.
_OCI_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
#: Registry, name, digest of the manifest.
OCI_PATTERN = re.compile(
    rf"oci://([a-z0-9][a-z0-9.-]*(?::\d+)?)/({_OCI_PART}(?:/{_OCI_PART})*)@sha256:([0-9a-f]{{64}})",
    re.ASCII,
)
_FORMS = {
    "s3": (S3_PATTERN, "s3://bucket/prefix, or s3://bucket/key?versionId=ID"),
    "https": (HTTPS_PATTERN, "https://host/path#sha256= and 64 hex digits"),
    "oci": (OCI_PATTERN, "oci://registry/name@sha256: and 64 hex digits"),
    "hf": (HF_PATTERN, "hf://owner/name@revision, with datasets/ before a data set's owner"),
}


def source_problem(text: str) -> str | None:
    """The problem of a source, as the predicate of a sentence about it; None for a valid one."""
    if (problem := name_problem(text, at_most=SOURCE_CHARACTERS_MAX)) is not None:
        return problem
    scheme = text.partition("://")[0]
    if scheme not in _FORMS:
        return "is not a source of data: s3://…, hf://…@…, oci://…@sha256:… or https://…#sha256=…"
    pattern, form = _FORMS[scheme]
    match = pattern.fullmatch(text)
    if match is None or (scheme == "s3" and match[3] is not None and not match[2]):
        return f"has not the form {form}"
    if scheme == "https" and _has_dot_segments(match[1]):
        return "leads elsewhere than it reads: write its path without . and .."
    return None


def _has_dot_segments(url: str) -> bool:
    """Those of a path are resolved by clients and servers, encoded ones too: behind them is another
    place than the text has, by which an operator lets sources in."""
    path = unquote(url.partition("?")[0])
    return not {".", ".."}.isdisjoint(re.split(r"[/\\]", path))


SetBytes = Annotated[int, Meta(ge=0, le=SET_BYTES_MAX)]


class DataSet(Checked):
    """One data set of a request: a host fetches it before its lease is usable there."""

    #: By which the function knows it.
    name: Annotated[str, Meta(extra={"problem": _name_problem})]
    #: As `_FORMS`, with the commit of `hf://`.
    source: Annotated[str, Meta(extra={"problem": source_problem})]
    #: SHA-256 of its manifest (`data_manifest.py`), in hex.
    digest: Annotated[str, Meta(extra={"problem": _digest_problem})]
    bytes: SetBytes = 0  #: 0 = not known

    @property
    def key(self) -> str:
        """The name under which hosts publish it."""
        return _key(self.source, self.digest)


@lru_cache(maxsize=4096)
def _key(source: str, digest: str) -> str:
    return "set:" + hashlib.sha256(f"{source}\n{digest}".encode()).hexdigest()[:_DIGITS]


class HeldSet(Checked):
    """The part of one data set that a host has."""

    key: Annotated[str, NAME]  #: `DataSet.key`
    bytes: SetBytes  #: fewer than the set has: the host fetches it, or has begun to


class HeldData(Checked, omit_defaults=True):
    """The change of a host's data sets since its last message; in a hello all of them."""

    #: New ones, and those with other bytes.
    added: Annotated[tuple[HeldSet, ...], Meta(max_length=HELD_MAX)] = ()
    removed: Annotated[tuple[Annotated[str, NAME], ...], Meta(max_length=HELD_MAX)] = ()  #: keys
    #: Learned of its fetches; None = none yet.
    bytes_per_s: Annotated[float, Meta(gt=0, le=1e15)] | None = None


def loaded_name(workload: str, sets: Iterable[DataSet]) -> str:
    """The name of a workload together with its data sets: workers that are warm with one content
    serve no lease with another one."""
    named = "".join(f"{one.name}={one.key}\n" for one in sets)
    return f"{workload}@{hashlib.sha256(named.encode()).hexdigest()[:12]}" if named else workload


def size_of(one: DataSet) -> int:
    """The bytes of a set, or the assumption where they are not known."""
    return one.bytes or UNKNOWN_BYTES


def held_bytes(sets: Iterable[DataSet], held: Mapping[str, int]) -> int:
    """The bytes of these sets that a host has. `held`: bytes by key."""
    return sum(min(size_of(one), held.get(one.key, 0)) for one in sets)


def fetch_s(
    sets: Iterable[DataSet], held: Mapping[str, int], bytes_per_s: float | None = None
) -> float:
    """The seconds that a host needs to fetch what it lacks, at its learned rate."""
    missing = sum(max(0, size_of(one) - held.get(one.key, 0)) for one in sets)
    return missing / (bytes_per_s or DEFAULT_BYTES_PER_S)


def held_text(sets: tuple[DataSet, ...], held: Mapping[str, int]) -> str:
    """`has 3.1 of 3.4 GB of weights`; with several sets their names."""
    names = ", ".join(one.name for one in sets)
    has, whole = held_bytes(sets, held), sum(map(size_of, sets))
    unit, divisor = next(((u, d) for u, d in _UNITS if whole >= d), _UNITS[-1])
    return f"has {has / divisor:.1f} of {whole / divisor:.1f} {unit} of {names}"


_UNITS = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
