"""Jobs as a table for other programs: CSV or JSON, in pieces. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from itertools import islice

from corekit.decode import encode_json
from orchgpu.web.model.jobs import JobSummary

#: Jobs of one piece; other requests are answered between two.
PIECE = 500
COLUMNS = (
    *("job", "state", "reason", "function", "tenant", "bucket", "key", "attempt", "device"),
    *("submitted_s", "received_s", "changed_s", "duration_s"),
)
#: The first characters by which a spreadsheet takes a cell for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_pieces(jobs: Iterable[JobSummary]) -> Iterator[bytes]:
    """RFC 4180, with a line of names. A text that looks like a formula begins with `'`."""
    yield _csv([COLUMNS])
    for part in _parts(jobs):
        yield _csv([[_cell(value) for value in _row(job).values()] for job in part])


def json_pieces(jobs: Iterable[JobSummary]) -> Iterator[bytes]:
    """`{"jobs": [...]}`, one job on each line."""
    begin = b'{"jobs": [\n'
    for part in _parts(jobs):
        yield begin + b",\n".join(encode_json(_row(job)) for job in part)
        begin = b",\n"
    yield b"\n]}\n" if begin == b",\n" else begin + b"]}\n"


def _parts(jobs: Iterable[JobSummary]) -> Iterator[list[JobSummary]]:
    left = iter(jobs)
    while part := list(islice(left, PIECE)):
        yield part


def _row(job: JobSummary) -> dict[str, object]:
    row = {name: getattr(job, name) for name in COLUMNS}
    return row | {"reason": None if job.reason == "NONE" else job.reason}


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _csv(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", "replace")
