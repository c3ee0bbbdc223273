"""Data sets and programs that the hosts of a job's earlier attempts did not have."""

from __future__ import annotations

from collections.abc import Mapping

from corekit.values import replace
from gpu_scheduler.data_names import name_of, reference_problem
from gpu_scheduler.model import Request

#: Names that one job's failed attempts may add to its request; later ones count as failures. It
#: also bounds their part of the job's record.
LACKED_MAX = 4
_KINDS = ("data", "programs")

#: Data sets and programs by kind, as in `Request`.
Lacked = Mapping[str, tuple[str, ...]]


def newly_lacked(reported: Mapping[str, object], request: Request, before: Lacked) -> Lacked | None:
    """Names that the host lacked and the job's request did not have yet, with those before.

    None when nothing is new, or there are too many names: then the attempt counts.
    """
    found = {kind: before.get(kind, ()) for kind in _KINDS}
    for kind in _KINDS:
        named = [name_of(reference) for reference in getattr(request, kind)]
        names = reported.get(kind)
        for name in names if isinstance(names, list) else ():
            if isinstance(name, str) and name not in named and reference_problem(name) is None:
                found[kind] = tuple(dict.fromkeys((*found[kind], name)))
    fits = sum(map(len, found.values())) <= LACKED_MAX
    return found if fits and found != {kind: before.get(kind, ()) for kind in _KINDS} else None


def with_lacked(request: Request, lacked: Lacked) -> Request:
    """The request of the next attempt: placement leaves out the hosts without these names."""
    if not lacked:
        return request
    data = _joined(request.data, lacked.get("data", ()))
    return replace(
        request, data=data, programs=_joined(request.programs, lacked.get("programs", ()))
    )


def _joined(declared: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    known = {name_of(reference) for reference in declared}
    return (*declared, *(name for name in names if name not in known))


def lacked_in(payload: Mapping[str, object]) -> Lacked:
    """The inverse of the part `lacked` of a job's payload; empty for a malformed one."""
    value = payload.get("lacked")
    if not isinstance(value, Mapping):
        return {}
    return {
        kind: tuple(name for name in names if isinstance(name, str))
        for kind in _KINDS
        if isinstance(names := value.get(kind), list | tuple)
    }
