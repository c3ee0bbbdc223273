"""The files that a command makes of the outputs of jobs: a folder, and a pattern of paths in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from string import Formatter

from corekit.errors import AppError, ErrorCode, invalid
from corekit.suggest import one_of_known
from corekit.values import Value
from orchgpu.jobs.following import Followed
from orchgpu.jobs.outputs import JobOutput
from orchgpu.jobs.places import file_below

#: Each output has a file of its own, whatever other jobs write.
OWN_FOLDERS = "{job}/{key}"
#: Field → its meaning. All but `job`, `input` and `index` are of the output's key.
FIELDS = {
    "job": "id of the job",
    "input": "name of its input without the last suffix",
    "index": "number of the output in its job, from 0",
    "key": "key of the output",
    "name": "last part of the key",
    "stem": "name without its last suffix",
    "suffix": "that suffix, with its dot",
}
#: Without one of these, the outputs of several jobs would be one file.
_OF_JOBS = frozenset({"job", "input", "key", "name", "stem"})


class OutputFolder(Value):
    """A folder for outputs, and their paths in it."""

    path: Path
    pattern: str = OWN_FOLDERS

    def check(self, jobs: int) -> None:
        """Raise INVALID for a pattern that is wrong, or too little for this number of jobs."""
        used = [field for _, field, _ in self._parts() if field is not None]
        for field in used:
            if field not in FIELDS:
                raise invalid(f"--name: no field {field!r}{one_of_known(field, FIELDS)}")
        if jobs > 1 and _OF_JOBS.isdisjoint(used):
            needed = " or ".join(f"{{{name}}}" for name in sorted(_OF_JOBS))
            raise invalid(f"--name {self.pattern!r}: {jobs} jobs need {needed} in it")
        file_below(self.path, self._render(dict.fromkeys(FIELDS, "x") | {"index": 0}))

    def files(self, jobs: Sequence[Followed]) -> Iterator[tuple[Path, JobOutput]]:
        """The file of each output. Raises CONFLICT for two outputs that would be one file."""
        taken: dict[Path, JobOutput] = {}
        for job in jobs:
            for index, output in enumerate(job.outputs):
                file = self.file(job, index)
                other = taken.setdefault(file, output)
                if other != output and not (other.sha256 and other.sha256 == output.sha256):
                    text = f"{other.url} of {other.job} and {output.url} of {output.job} would both"
                    text += (
                        f" become {file}: nothing was fetched; --name {OWN_FOLDERS!r} keeps both"
                    )
                    raise AppError(ErrorCode.CONFLICT, text)
                yield file, output

    def file(self, job: Followed, index: int) -> Path:
        """The file of one output: always below the folder."""
        output = job.outputs[index]
        name = PurePosixPath(output.key)
        values = {
            "job": job.job_id,
            "input": PurePosixPath(job.submitted.file.name).stem,
            "index": index,
            "key": output.key,
            "name": name.name,
            "stem": name.stem,
            "suffix": name.suffix,
        }
        return file_below(self.path, self._render(values))

    def _render(self, values: dict[str, object]) -> str:
        try:
            return "".join(
                text + ("" if field is None else format(values[field], spec))
                for text, field, spec in self._parts()
            )
        except (ValueError, TypeError) as error:
            raise invalid(f"--name {self.pattern!r}: {error}") from None

    def _parts(self) -> list[tuple[str, str | None, str]]:
        try:
            parts = Formatter().parse(self.pattern)
            return [(text, field, spec or "") for text, field, spec, _ in parts]
        except ValueError as error:
            raise invalid(f"--name {self.pattern!r}: {error}") from None
