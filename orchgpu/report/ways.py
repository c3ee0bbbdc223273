"""One function in each place it may run: its variants for a comparison, and their figures. Pure.

A variant is the function under a name of its own, with prefixes of its own in the same buckets of
inputs and outputs, and an intermediate bucket of its own, for one attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from contract.result import Result
from corekit.errors import invalid
from corekit.values import Value, replace
from fdl.beside_device import Host
from fdl.keys.host import place_faults
from fdl.model import (
    LAMBDA_TIMEOUT_S_MAX,
    Document,
    Function,
    Functions,
    Job,
    Path,
    Queue,
    Storage,
)
from gpu_scheduler.model import Record
from orchgpu.core.job import input_from_payload
from orchgpu.core.prices import Prices
from orchgpu.jobs.intervals import intervals, job_times
from orchgpu.report.cost import UsedTime, device_seconds

NAME_CHARACTERS_MAX = 64
#: Intervals of a job (`orchgpu.jobs.intervals`) of each time in a row.
_WAITING = ("queued", "pause", "waits")
_START = ("staging", "cold start")
_CODE = ("running",)


class Way(StrEnum):
    """A place of the code, and of its device."""

    REMOTE = "lambda"  #: in Lambda, with a remote device
    HOST = "host"  #: on the host of its device
    CPU = "cpu"  #: in Lambda, without a device

    @property
    def meaning(self) -> str:
        """The way for people."""
        return {
            Way.REMOTE: "in Lambda, with a remote device",
            Way.HOST: "on the host of its device",
            Way.CPU: "in Lambda, without a device",
        }[self]


def compared(document: Document, name: str) -> Function:
    """The function of that name. Raises INVALID for one that has no ways to compare."""
    found = next((one for one in document.functions.aws if one.name == name), None)
    if found is None or found.group is not None or found.workflow:
        raise invalid(f"{name} is a workflow or a group: only a function of its own is compared")
    if found.gpu is None:
        raise invalid(f"{name} has no device (`gpu:`), so it runs in Lambda alone")
    if found.foreign:
        raise invalid(f"{name} has `completion: object`: its code reports no times")
    return found


def variant_name(name: str, way: Way) -> str:
    """The name of a variant; it begins as the function's does, which roles may require."""
    end = f"-compare-{way}"
    return name[: NAME_CHARACTERS_MAX - len(end)] + end


def variant(document: Document, function: Function, way: Way) -> Document:
    """The document of a variant alone. Raises INVALID where the function cannot run so."""
    declared, job = function.function, function.job or Job()
    on_host = way is Way.HOST
    if not on_host and function.host.image is not None:
        raise invalid("Lambda does not run the image of `host:`")
    timeout_s = declared.timeout_s if on_host else min(declared.timeout_s, LAMBDA_TIMEOUT_S_MAX)
    made = replace(
        function,
        execution="host" if on_host else "lambda",
        host=function.host if on_host else Host(),
        service=None if on_host else function.service,
        gpu=None if way is Way.CPU else function.gpu,
        function=replace(
            declared,
            name=variant_name(function.name, way),
            timeout_s=timeout_s,
            input=(),
            output=_moved(declared.output, way),
            logging=replace(declared.logging, group=None),
        ),
        job=replace(
            job,
            input=_moved(function.user_input, way),
            intermediate=None,  # one bucket has the rules of one function
            queue=Queue(retention_s=job.queue.retention_s),
            attempts_max=1,
        ),
        notify=(),
        schedule=(),
    )
    refuse_misplaced(made)
    return replace(
        document, functions=Functions(aws=(made,)), workflows=(), sandboxes=(), rewrites=()
    )


def refuse_misplaced(function: Function) -> None:
    """Raise INVALID for a function that its place cannot run."""
    if faults := [f"{key}: {message}" for key, message in place_faults(function)]:
        raise invalid("; ".join(faults))


def _moved(storages: Iterable[Storage], way: Way) -> tuple[Storage, ...]:
    def moved(path: Path) -> Path:
        return replace(path, prefix=f"compare-{way}/{path.prefix}".rstrip("/"))

    return tuple(replace(one, path=moved(one.path)) for one in storages)


class Figures(Value):
    """Times, bytes and cost of one job; None = not known, or it did not happen."""

    job: str
    state: str
    total_s: float | None = None  #: from the upload to its result
    waiting_s: float | None = None  #: in the queue and for a device
    start_s: float | None = None  #: from the grant to the user's code
    code_s: float | None = None
    input_bytes: float | None = None
    output_bytes: float | None = None
    usd: float | None = None

    @property
    def succeeded(self) -> bool:
        return self.state == "SUCCEEDED"


class Row(Value):
    """One way: the means of its jobs that succeeded, or why there are none."""

    way: Way
    jobs: Sequence[Figures] = ()
    mean: Figures | None = None
    why: str = ""  #: of a failure


def figures(
    way: Way,
    job: str,
    state: str,
    record: Record | None,
    result: Result | None,
    *,
    memory_mib: int,
    prices: Prices,
) -> Figures:
    """The figures of a job that is over. `memory_mib`: of its function.

    It costs its function's memory from start to result, on a host nothing: a host is in the price
    of its device; and its leases' device-seconds, which are known once their shares are released.
    """
    times = job_times(record, result, {}, {})
    source = None if record is None else input_from_payload(record.block)
    code = {} if result is None else result.times
    seconds: dict[str, float] = {}
    for one in intervals(times):
        seconds[one.name] = seconds.get(one.name, 0.0) + (one.end_s or one.start_s) - one.start_s
    committed_s, started_s = code.get("committed"), code.get("EStart")
    total_s = usd = None
    if committed_s is not None and times.uploaded_s is not None:
        total_s = committed_s - times.uploaded_s
    device_s = 0.0 if way is Way.CPU else _device_s(record)
    if committed_s is not None and started_s is not None and device_s is not None:
        usd = UsedTime(
            held_s=committed_s - started_s,
            device_s=device_s,
            memory_mib=None if way is Way.HOST else memory_mib,
            prices=prices,
        ).usd
    return Figures(
        job=job,
        state=state,
        total_s=total_s,
        waiting_s=sum(seconds.get(name, 0.0) for name in _WAITING),
        start_s=sum(seconds.get(name, 0.0) for name in _START),
        code_s=sum(seconds.get(name, 0.0) for name in _CODE),
        input_bytes=None if source is None else source.size,
        output_bytes=sum(int(str(file["size"])) for file in (result.files if result else ())),
        usd=usd,
    )


def _device_s(record: Record | None) -> float | None:
    """None while a lease holds its shares, or without a record."""
    if record is None or not record.leases or any(one.freed_s is None for one in record.leases):
        return None
    return device_seconds(record.leases)


def row(way: Way, jobs: Sequence[Figures], why: str = "") -> Row:
    """The row of a way; `why`: of the failure of a job, or of all."""
    good = [one for one in jobs if one.succeeded]
    if not good:
        return Row(way=way, jobs=jobs, why=why)
    mean = Figures(
        job="",
        state="SUCCEEDED",
        total_s=_mean([one.total_s for one in good]),
        waiting_s=_mean([one.waiting_s for one in good]),
        start_s=_mean([one.start_s for one in good]),
        code_s=_mean([one.code_s for one in good]),
        input_bytes=_mean([one.input_bytes for one in good]),
        output_bytes=_mean([one.output_bytes for one in good]),
        usd=_mean([one.usd for one in good]),
    )
    return Row(way=way, jobs=jobs, mean=mean, why=why)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return sum(known) / len(known) if len(known) == len(values) else None
