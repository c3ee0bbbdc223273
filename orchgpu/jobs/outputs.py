"""The outputs of a job, as far as its result may name them.

Any program that may write into a function's intermediate bucket can write a result, with the name
of any object in it. So an object is taken for an output only below a place that the function
declares, and only if its metadata names the job, which the runner writes. The object that ends a
job of a foreign function (`completion: object`) has the key that the definition gives it instead.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from contract.http_jobs import is_below
from contract.keys import OUTPUT_JOB
from corekit.errors import AppError, ErrorCode
from corekit.values import Value
from orchgpu.cloud_services import Head
from orchgpu.core.function import Function
from orchgpu.jobs.cloud import JobCloud


class JobOutput(Value):
    """One output as the job's result names it."""

    function: Function
    job: str
    bucket: str
    key: str
    sha256: str = ""  #: of its content, by the result; "" of a foreign function's

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.key}"

    @property
    def is_declared(self) -> bool:
        """Whether it lies where the function's definition puts outputs."""
        places = [(place.bucket, place.prefix) for place in self.function.outputs]
        if self._ends_a_foreign_job:
            places.append((self.bucket, ""))
        return is_below(self.bucket, self.key, places)

    @property
    def _ends_a_foreign_job(self) -> bool:
        function = self.function
        if not function.object_bucket or self.bucket != function.object_bucket:
            return False
        pattern = re.escape(function.object_key)
        values = {"{job}": re.escape(self.job), "{key}": ".+", "{name}": "[^/]+", "{stem}": "[^/]+"}
        for word, value in values.items():
            pattern = pattern.replace(re.escape(word), value)
        return re.fullmatch(pattern, self.key) is not None

    def is_written_by_its_job(self, head: Head) -> bool:
        """Whether the object there is still the job's own; a foreign function marks none."""
        return bool(self.function.object_bucket) or head.metadata.get(OUTPUT_JOB) == self.job

    def require_declared(self) -> None:
        """Raise DENIED for an object elsewhere."""
        if not self.is_declared:
            text = f"the result of {self.job} names {self.url}, which is not an output of"
            text += f" {self.function.name}: it is not read"
            raise AppError(ErrorCode.DENIED, text)


def output_of(function: Function, job: str, file: Mapping[str, object]) -> JobOutput:
    """One entry of a result's `files`."""
    return JobOutput(
        function=function,
        job=job,
        bucket=str(file.get("bucket", "")),
        key=str(file.get("key", "")),
        sha256=str(file.get("sha256", "")),
    )


def read_output(cloud: JobCloud, output: JobOutput, bytes_max: int) -> bytes:
    """The whole content. Raises DENIED, NOT_FOUND, CONFLICT, and IMPOSSIBLE for a larger one."""
    head = own_head(cloud, output)
    if head.size > bytes_max:
        text = f"{output.url} has {head.size} bytes; {bytes_max} are read at most:"
        raise AppError(ErrorCode.IMPOSSIBLE, f"{text} `orchgpu get {output.url}` fetches it")
    return cloud.fetch(output.bucket, output.key, etag=head.etag)


def download_output(cloud: JobCloud, output: JobOutput, to: Path) -> None:
    """The content into a file, in pieces, by the sha256 of the result.

    Raises DENIED, NOT_FOUND, CONFLICT; INVALID where the file cannot be written.
    """
    own_head(cloud, output)
    cloud.download(output.bucket, output.key, to)
    if not is_content(to, output.sha256):
        to.unlink()
        raise _overwritten(output)


def is_content(file: Path, sha256: str) -> bool:
    """True when the file exists and has this content; "" is any."""
    if not file.is_file():
        return False
    with file.open("rb") as content:
        return sha256 in ("", hashlib.file_digest(content, "sha256").hexdigest())


def own_head(cloud: JobCloud, output: JobOutput) -> Head:
    """The properties of the object, which is the job's. Raises CONFLICT for another job's."""
    output.require_declared()
    head = cloud.head(output.bucket, output.key)
    if not output.is_written_by_its_job(head):
        raise _overwritten(output)
    return head


def _overwritten(output: JobOutput) -> AppError:
    text = f"{output.url} is not what {output.job} wrote: another job or upload replaced it"
    return AppError(ErrorCode.CONFLICT, text, overwritten=output.url)
