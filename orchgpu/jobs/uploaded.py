"""Inputs of functions as they are stored: their keys, their metadata, the jobs that they start."""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePath
from typing import Protocol

from contract.http_jobs import DIGEST, key_below
from contract.keys import job_id
from contract.parameters import SET
from corekit.values import Value
from orchgpu.cloud_services import Head
from orchgpu.core.function import Function
from orchgpu.jobs.files import unreadable

#: Metadata of an input that was copied: the sha256 of the URL of its source.
SOURCE = "orchgpu-source-sha256"


class TakesInputs(Protocol):
    """A function or a workflow: uploads to its input start a job or a run."""

    @property
    def name(self) -> str: ...
    @property
    def revision(self) -> str: ...
    @property
    def input_bucket(self) -> str: ...
    @property
    def input_prefix(self) -> str: ...
    @property
    def input_suffixes(self) -> tuple[str, ...]: ...


class Submitted(Value):
    """One uploaded input."""

    function: Function
    file: PurePath  #: its name; the file itself may be gone by now
    key: str  #: in the function's input bucket
    job_ids: tuple[str, ...]  #: by version id and, for events that carry none, by etag and date
    #: RStart: this machine's wall clock at the start of the upload; the store's for an earlier one.
    uploaded_s: float

    @property
    def input(self) -> str:
        return f"{self.function.input_bucket}/{self.key}"


def source_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def input_key(function: TakesInputs, file: PurePath) -> str:
    """The key under which a file becomes an input of the function."""
    return key_below(function.input_prefix, file.name)


def origin_of(function: TakesInputs, file: Path, parameters: str = "") -> dict[str, str]:
    """Metadata of an input, by which a repeated command recognises its own upload."""
    try:
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(file, error) from error
    given = {SET: parameters} if parameters else {}
    return {DIGEST: digest, "orchgpu-revision": function.revision, **given}


def submitted_as(function: Function, file: PurePath, head: Head, uploaded_s: float) -> Submitted:
    key = input_key(function, file)
    ids = tuple(job_id(function.input_bucket, key, v, function.name) for v in head.versions)
    return Submitted(function=function, file=file, key=key, job_ids=ids, uploaded_s=uploaded_s)
