"""Data sets and programs of hosts by name, as requests write them: `proteins`, `proteins@sha256:…`.

The form with a digest is that of container images: it accepts exactly this content. A host reports
the SHA-256 of each data set and program that it has (`gpud --data`, `--program`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from gpu_scheduler.names import HOST_PROGRAMS

NAMES_MAX = 64  #: data sets, or programs, of one request
HOST_NAMES_MAX = 1024  #: data sets, or programs, of one host
NAME_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"
REFERENCE_PATTERN = rf"{NAME_PATTERN}(@sha256:[0-9a-f]{{64}})?"
_NAME = re.compile(NAME_PATTERN, re.ASCII)
_REFERENCE = re.compile(REFERENCE_PATTERN, re.ASCII)
_DIGEST = "@sha256:"
_SHOWN_DIGITS = 12

#: Name and SHA-256 ("" = not known) of each data set or program of a host, sorted by name.
Offered = tuple[tuple[str, str], ...]


def is_data_name(text: str) -> bool:
    """True for a name that a host may give to a data set or program."""
    return _NAME.fullmatch(text) is not None


def reference_problem(text: str) -> str | None:
    """The problem with a data set or program of a request; None for a valid one."""
    if _REFERENCE.fullmatch(text) is not None:
        return None
    return f"{text!r:.80} is not a name such as proteins, or proteins@sha256: with 64 hex digits"


def offered_of(found: Mapping[str, str]) -> Offered:
    """The report of a host in the form that `first_missing` compares."""
    return tuple(sorted(found.items()))


def name_of(reference: str) -> str:
    """`proteins` for `proteins@sha256:…`."""
    return reference.partition(_DIGEST)[0]


def pinned(name: str, digest: str) -> str:
    """The reference to exactly this content; where it is not known, the name alone."""
    return f"{name}{_DIGEST}{digest}" if digest else name


def short(reference: str) -> str:
    """The reference with the beginning of its digest, for people."""
    name, marker, digest = reference.partition(_DIGEST)
    return f"{name}{marker}{digest[:_SHOWN_DIGITS]}"


def host_text(host: str, data: Mapping[str, str], programs: Mapping[str, str]) -> str:
    """`gpu-a has data nr, proteins; programs blast`; "" for a host without any."""
    offers = offers_text(data, programs)
    return f"{host} has {offers}" if offers else ""


def offers_text(data: Mapping[str, str], programs: Mapping[str, str]) -> str:
    """`data nr, proteins; programs blast`; "" without any. A host's own programs are not named."""
    own = frozenset(HOST_PROGRAMS)
    named = {"data": sorted(data), "programs": sorted(programs.keys() - own)}
    return "; ".join(f"{kind} {', '.join(names)}" for kind, names in named.items() if names)


@lru_cache(maxsize=4096)
def first_missing(asked: tuple[str, ...], offered: Offered | None) -> str | None:
    """The first reference that a host does not offer; None = unknown, which offers all of them."""
    if offered is None:
        return None
    known = dict(offered)
    for reference in asked:
        name, _, digest = reference.partition(_DIGEST)
        if name not in known or (digest and known[name] != digest):
            return reference
    return None
