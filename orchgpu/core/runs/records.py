"""The objects of a run as values; their keys and their layout are those of `contract.run`."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence

from contract.states import Reason, RunState, StepState
from corekit.values import Value, field, replace
from gpu_scheduler.promises import PlannedStep
from gpu_scheduler.protocol.answers import Outcome
from orchgpu.core.routing import InputEvent
from orchgpu.core.runs.workflow import Workflow

#: The version of a list of files, which the runner checks.
VERSION = 1
#: Of one name in a file system, in bytes.
_NAME_BYTES_MAX = 200
_PATH_BYTES_MAX = 900


class Frozen(Value):
    """`run.json`: what a run is, whatever is deployed later."""

    run: str
    workflow: Workflow
    input: InputEvent
    stored_at_s: float  #: wall clock: its input was stored
    frozen_at_s: float  #: wall clock of the writer
    #: Of the version of the input: what its jobs see of it (`contract.parameters`).
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def metadata_bucket(self) -> str:
        """The bucket in which jobs find it; "" where there is none."""
        return self.workflow.bucket if self.metadata else ""


class Cancel(Value):
    """`cancel.json`"""

    at_s: float  #: wall clock of the writer
    detail: str = ""


class Retry(Value):
    """`retries/<n>.json`: results that ended by `at_s` count as not there, unless they succeeded.

    With `from_step` neither do those of that step and of all that it feeds.
    """

    at_s: float  #: wall clock of the writer; not before the end of the run
    from_step: str = ""  #: `from` in the object

    def to_json(self) -> bytes:
        return json.dumps({"at_s": self.at_s, "from": self.from_step}).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Retry:
        """Raises ValueError for anything else than a retry; unknown keys are passed over."""
        value = json.loads(data)
        at_s = value.get("at_s") if isinstance(value, dict) else None
        if isinstance(at_s, bool) or not isinstance(at_s, int | float) or not math.isfinite(at_s):
            raise ValueError("a retry has a number `at_s`")
        return cls(at_s=float(at_s), from_step=str(value.get("from") or ""))


class Admission(Value):
    """`admissions/<n>.json`: the promise of a run after its n-th retry, or the refusal."""

    outcome: Outcome  #: GRANTED, BUSY or IMPOSSIBLE
    why: str  #: for people
    at_s: float  #: wall clock of the writer: it was requested
    end_in_s: float | None = None  #: from `at_s`: promised, or the earliest end that was found
    cost_usd: float | None = None  #: of the plan
    steps: tuple[PlannedStep, ...] = ()  #: what is booked
    unpromised: bool = False  #: refused because the queue policy in force gives no promises

    @property
    def granted(self) -> bool:
        return self.outcome is Outcome.GRANTED

    @property
    def reason(self) -> Reason:
        """Of a refusal."""
        if self.unpromised:
            return Reason.NO_PROMISES
        return Reason.SLO_BUSY if self.outcome is Outcome.BUSY else Reason.SLO_IMPOSSIBLE


class InputFile(Value):
    """A file that a step gets, pinned by version or etag."""

    step: str  #: that wrote it; "" for the input of the run
    bucket: str
    key: str
    version: str | None = None
    etag: str = ""
    size: int = 0  #: bytes
    name: str = ""  #: below the folder of `step`, with slashes

    @property
    def pin(self) -> str:
        return self.version or self.etag

    def is_still(self, version: str | None, etag: str) -> bool:
        """Whether the object of that version and etag is this file; one without a pin is any."""
        return self.pin in ("", version if self.version else etag)


class Inputs(Value):
    """`inputs/<step>.json`"""

    version: int = VERSION
    run: str
    workflow: str
    step: str
    retry: int  #: the retries that it follows: a newer list replaces an older one
    files: tuple[InputFile, ...]

    @property
    def text(self) -> str:
        """For people: the first file, and how many more there are."""
        first, *others = self.files
        return f"{first.bucket}/{first.key} and {len(others)} more"


class EndedStep(Value):
    """A step in a run's result."""

    name: str
    state: StepState
    reason: str = "NONE"
    detail: str = ""
    jobs: int = 0
    ended_at_s: float = 0.0  #: wall clock of its last result; 0 = it has none


class RunResult(Value):
    """`result.json`. It stands until there are more retries than it knows of."""

    run: str
    workflow: str
    state: RunState
    reason: str
    detail: str
    retries: int
    started_at_s: float  #: wall clock: the input was stored
    ended_at_s: float  #: wall clock of the writer
    steps: tuple[EndedStep, ...]
    files: tuple[InputFile, ...] = ()  #: that no step takes; at most FILES_MAX
    cost_usd: float | None = None  #: of a run that counts it: of the results that count
    files_left_out: int = 0  #: more of them; the results of its jobs name them all

    @property
    def in_short(self) -> RunResult:
        """Without files and the details of steps: as a message has it."""
        left_out = self.files_left_out + len(self.files)
        steps = tuple(replace(step, detail="") for step in self.steps)
        return replace(self, steps=steps, files=(), files_left_out=left_out)


def local_names(files: Iterable[tuple[InputFile, str]]) -> tuple[InputFile, ...]:
    """The files with the names that they have on the function's disk: no two are in the way.

    Each comes with the prefix that its key is named below.
    """
    return tuple(_named(list(files)))


def _named(files: Sequence[tuple[InputFile, str]]) -> Iterable[InputFile]:
    taken: set[str] = set()  # files and folders, below the folder of all steps
    folders: set[str] = set()
    for file, prefix in files:
        name = _below(file.key, prefix)
        place = f"{file.step}/{name}"
        if place in taken or place in folders or any(one in taken for one in _folders(place)):
            name = f"{_digest(file)}-{name.rsplit('/', 1)[-1]}"
            place = f"{file.step}/{name}"
        taken.add(place)
        folders.update(_folders(place))
        yield InputFile(
            step=file.step,
            bucket=file.bucket,
            key=file.key,
            version=file.version,
            etag=file.etag,
            size=file.size,
            name=name,
        )


def _below(key: str, prefix: str) -> str:
    """The key below the prefix, if it is a path that every file system takes; else its end."""
    below = key.removeprefix(f"{prefix}/") if prefix else key
    parts = below.split("/")
    plain = all(_is_plain(part) for part in parts)
    if plain and len(below.encode("utf-8", "surrogatepass")) <= _PATH_BYTES_MAX:
        return below
    last = "".join("_" if c in "\\:" or not c.isprintable() else c for c in parts[-1])
    end = last.encode("utf-8", "ignore")[-_NAME_BYTES_MAX // 2 :].decode("utf-8", "ignore")
    return f"{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}-{end}"


def _is_plain(part: str) -> bool:
    size = len(part.encode("utf-8", "surrogatepass"))
    return part not in ("", ".", "..") and "\0" not in part and size <= _NAME_BYTES_MAX


def _folders(place: str) -> list[str]:
    parts = place.split("/")[:-1]
    return ["/".join(parts[: n + 1]) for n in range(1, len(parts))]


def _digest(file: InputFile) -> str:
    text = "\0".join((file.bucket, file.key, file.pin))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
