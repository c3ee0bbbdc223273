"""The argument of a Python handler: one input, and the folder for its results.

    # blast.py, with `handler: blast.search` in the definition
    from lambda_functions.work import Work

    def search(work: Work) -> None:
        (work.output_folder / f"{work.input.stem}.tsv").write_text(found_in(work.input))

It holds the same values as a script's variables (docs/reference/function-runtime.md), with types.
An exception fails the attempt; its traceback ends the log.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from contract.parameters import METADATA, PREFIX
from contract.record import JsonObject


def progress(part: float, text: str = "") -> None:
    """Report how far the code is: `part` of all, 0…1, and a text for the job's page.

    Cheap: it writes a small file, which is looked at every ten seconds. Outside of a job it does
    nothing. Raises ValueError for another part.
    """
    if not 0.0 <= part <= 1.0:
        raise ValueError(f"the part of the work must be 0…1, not {part}")
    if (file := os.environ.get("PROGRESS_FILE")) is not None:
        written = Path(f"{file}.{os.getpid()}")
        written.write_text(f"{part:.4f} {text.splitlines()[0] if text else ''}\n", "utf-8")
        written.replace(file)


@dataclass(frozen=True)
class Work:
    """One job's input for one call of a handler."""

    input: Path  #: INPUT_FILE_PATH: a file named like the object; of several files their folder
    input_folder: Path  #: TMP_INPUT_DIR: its folder, writable until the call ends
    output_folder: Path  #: TMP_OUTPUT_DIR: every file below it is stored after the call
    bucket: str  #: of the input
    key: str  #: STORAGE_OBJECT_KEY, decoded
    size: int  #: of the input, bytes, from the event
    etag: str  #: from the event; "" without one
    version_id: str | None  #: None on an unversioned bucket
    event_time: str  #: EVENT_TIME: ISO 8601
    event: JsonObject  #: EVENT: the S3 event with this one record
    device_count: int  #: of the lease; 0 without one
    #: RESULT_FILE: a JSON object of at most 64 KiB that the code may write; None without jobs.
    result_file: Path | None
    #: CHECKPOINT_DIR: a folder that the next attempt of this job continues from, if this one is cut
    #: short (`job: {checkpoint}`); write a file under another name first, then rename it.
    checkpoint_folder: Path | None
    run_folder: Path | None  #: RUN_DIR: a folder that all steps of one sandbox see; else None
    variables: Mapping[str, str] = field(repr=False)  #: the whole environment of this process

    @property
    def inputs(self) -> dict[str, list[Path]]:
        """The input files by the step that wrote them, sorted; "" for the input of a job or run."""
        found: dict[str, list[Path]] = {}
        for path in sorted(self.input_folder.rglob("*")):
            if path.is_file():
                below = path.relative_to(self.input_folder).parts
                found.setdefault(below[0] if len(below) > 1 else "", []).append(path)
        return found

    @property
    def parameters(self) -> dict[str, str]:
        """The values of `orchgpu run --set NAME=VALUE` for this input, or for its run."""
        start = len(PREFIX)
        return {k[start:]: v for k, v in self.variables.items() if k.startswith(PREFIX)}

    @property
    def metadata(self) -> dict[str, str]:
        """INPUT_METADATA: what other tools stored with the input, or with that of its run."""
        found: dict[str, str] = json.loads(self.variables.get(METADATA) or "{}")
        return found

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Work:
        """Read the variables of a script. Raises KeyError or ValueError outside of a job."""
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
            result_file=Path(environ["RESULT_FILE"]) if "RESULT_FILE" in environ else None,
            checkpoint_folder=(
                Path(environ["CHECKPOINT_DIR"]) if "CHECKPOINT_DIR" in environ else None
            ),
            run_folder=Path(environ["RUN_DIR"]) if "RUN_DIR" in environ else None,
            variables=dict(environ),
        )
