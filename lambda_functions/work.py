"""What a Python handler gets: one input, and where its files go.

    # blast.py, with `handler: blast.search` in the definition
    from lambda_functions.work import Work

    def search(work: Work) -> None:
        (work.output_folder / f"{work.input.stem}.tsv").write_text(found_in(work.input))

The same as the variables of a script (docs/function-runtime.md), with types. An exception is a
failure of the attempt, and its traceback the last lines of the log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Work:
    """One job's input for one call of a handler."""

    input: Path  #: INPUT_FILE_PATH: a file of the object's own name
    input_folder: Path  #: TMP_INPUT_DIR: where it lies; yours until the call ends
    output_folder: Path  #: TMP_OUTPUT_DIR: every file below is stored when the call returned
    bucket: str  #: of the input
    key: str  #: STORAGE_OBJECT_KEY, decoded
    size: int  #: of the input, bytes, as the event says
    etag: str  #: as the event says; "" when it does not
    version_id: str | None  #: None on an unversioned bucket
    event_time: str  #: EVENT_TIME: ISO 8601
    event: Mapping[str, Any]  #: EVENT: the S3 event with this one record
    device_count: int  #: of the lease; 0 without one
    variables: Mapping[str, str] = field(repr=False)  #: the whole environment of this process

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Work:
        """From the variables that a script gets. Raises KeyError or ValueError elsewhere."""
        event = json.loads(environ["EVENT"])
        s3 = (event.get("Records") or [{}])[0].get("s3", {})
        entry = s3.get("object", {})
        return cls(
            input=Path(environ["INPUT_FILE_PATH"]),
            input_folder=Path(environ["TMP_INPUT_DIR"]),
            output_folder=Path(environ["TMP_OUTPUT_DIR"]),
            bucket=str(s3.get("bucket", {}).get("name", "")),
            key=environ["STORAGE_OBJECT_KEY"],
            size=int(entry.get("size") or 0),
            etag=str(entry.get("eTag") or ""),
            version_id=entry.get("versionId"),
            event_time=environ.get("EVENT_TIME", ""),
            event=event,
            device_count=int(environ.get("ORCHGPU_DEVICE_COUNT") or 0),
            variables=dict(environ),
        )
