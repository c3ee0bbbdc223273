"""The declared data sets of a function, with the digests of what their sources have now."""

from __future__ import annotations

from collections.abc import Iterator

from corekit.errors import invalid
from corekit.values import replace
from fdl.model import Function
from fdl.plan.facts import DataFacts, Facts
from gpu_scheduler.data_manifest import digest_of, https_file, manifest_of
from gpu_scheduler.data_sets import DataSet
from gpu_scheduler.model import Request

_HOST = "host:"


def with_data(request: Request, function: Function, facts: Facts) -> Request:
    """The request of a function's jobs with its declared data.

    Raises INVALID for a source that was not read: only the cloud of its bucket can plan it.
    """
    named = (one.source.removeprefix(_HOST) for one in function.data.values() if one.of_host)
    return replace(
        request,
        data=tuple(dict.fromkeys((*request.data, *named))),
        data_sets=tuple(data_sets_of(function, facts)),
    )


def data_sets_of(function: Function, facts: Facts) -> Iterator[DataSet]:
    """The data sets that hosts fetch."""
    for name, declared in function.data.items():
        if not declared.of_host:
            found = facts.data.get(declared.source) or _known(declared.source)
            if found is None:
                text = f"{function.path}.data.{name}: {declared.source} was not read: this cloud"
                raise invalid(f"{text} reads no sources; name one by its digest")
            yield DataSet(
                name=name,
                source=found.source or declared.source,
                digest=found.digest,
                bytes=declared.bytes or found.bytes,
            )


def _known(source: str) -> DataFacts | None:
    """The facts that the text of a source states by itself."""
    if not source.startswith("https://"):
        return None
    return DataFacts(digest=digest_of(manifest_of(source, [https_file(source)])))


def data_notices(function: Function, facts: Facts) -> Iterator[str]:
    """A sentence of the plan about each set."""
    for one in data_sets_of(function, facts):
        size = f", {one.bytes:,} bytes" if one.bytes else ", of unknown size (`size:`)"
        shown = f"sha256:{one.digest[:12]}{size}"
        yield f"{function.name}: data {one.name} is {one.source} at {shown}"
