"""The provenance of one job for people, as JSON, and as an RO-Crate."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from contract.result import Result
from corekit.cli.screen import echo, echo_json, echo_raw, echo_table
from corekit.cli.table import Column
from corekit.cli.text import printable
from corekit.errors import AppError, ErrorCode, invalid
from corekit.units import format_bytes
from orchgpu.jobs.known import Known
from orchgpu.jobs.ro_crate import METADATA_NAME, ro_crate

COLUMNS = (
    Column(name="WHAT"),
    Column(name="NAME", shrink_order=2, width_min=12, keep="both"),
    Column(name="VALUE", shrink_order=1, width_min=16, keep="both"),
)


def result_with_provenance(known: Known) -> Result:
    """The result of a job that is over. Raises NOT_FOUND while there is none, or without it."""
    result = known.standing
    if result is None:
        message = f"{known.job} has no result yet: it is {known.state}"
        raise AppError(ErrorCode.NOT_FOUND, message)
    if not result.provenance:
        message = f"the result of {known.job} has no provenance: another program wrote it"
        raise AppError(ErrorCode.NOT_FOUND, message)
    return result


def echo_provenance(known: Known, *, as_json: bool) -> None:
    """Print the provenance of a job. Raises as `result_with_provenance`."""
    result = result_with_provenance(known)
    if as_json:
        files = {"outputs": result.files, "state": result.state, "attempt": result.attempt}
        echo_json({"job": {"job_id": known.job, "provenance": result.provenance, **files}})
        return
    echo_table(COLUMNS, [*_rows(result.provenance), *_outputs(result)], empty="nothing is known")


def write_ro_crate(known: Known, place: str) -> None:
    """Write the RO-Crate of a job into the folder `place`, or to standard output for `-`.

    Raises as `result_with_provenance`; INVALID for a folder that cannot be written to.
    """
    result = result_with_provenance(known)
    text = json.dumps(ro_crate(result, known.function.name if known.function else None), indent=2)
    if place == "-":
        echo_raw(text)
        return
    file = Path(place) / METADATA_NAME
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise invalid(f"cannot write {file}: {error.strerror}") from None
    echo(str(file))


def _rows(known: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """One row for each fact; keys of a newer version are shown as they are."""
    for what, value in known.items():
        if isinstance(value, Mapping):
            for name, inner in value.items():
                yield what, printable(str(name)), _text(inner)
        elif isinstance(value, list):
            for number, entry in enumerate(value, 1):
                yield from _entry(what, number, entry)
        else:
            yield what, "", _text(value)


def _entry(what: str, number: int, entry: object) -> Iterator[tuple[str, str, str]]:
    if not isinstance(entry, Mapping):
        yield what, str(number), _text(entry)
        return
    facts = [f"{name} {_text(inner)}" for name, inner in entry.items() if name != "name"]
    yield what, printable(str(entry.get("name", number))), ", ".join(facts)


def _outputs(result: Result) -> Iterator[tuple[str, str, str]]:
    for file in result.files:
        name = printable(f"s3://{file['bucket']}/{file['key']}")
        yield "output", name, f"{format_bytes(int(file['size']))}, sha256 {file['sha256']}"


def _text(value: object) -> str:
    return printable(value if isinstance(value, str) else json.dumps(value))
