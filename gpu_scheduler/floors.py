"""Warm floors: the workers of a workload that hosts keep loaded, also before its first job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, TypeVar

from corekit.decode import encode_json
from corekit.errors import invalid
from corekit.values import Checked, Meta, Value, checked, replace
from gpu_scheduler.model import Request, Share
from gpu_scheduler.warm import workload_key

#: The most floors of one session, and of one host.
FLOORS_MAX = 1_000
#: The most workers of one floor.
WORKERS_MAX = 64
#: The most workers of the floors of one tenant that has no quota of devices.
TENANT_WORKERS_MAX = 64
#: The most calls that a floor loads for, and characters of the name or arguments of one.
LOADS_MAX, LOAD_CHARS_MAX = 32, 1_000
#: The most of them as JSON, and of all floors of one host.
LOADS_BYTES_MAX, HOST_BYTES_MAX = 8 << 10, 256 << 10

_Word = Annotated[str, Meta(max_length=LOAD_CHARS_MAX)]
#: Operations, each with the arguments as JSON that say what it loads.
Loads = Annotated[tuple[tuple[_Word, _Word], ...], Meta(max_length=LOADS_MAX)]


class WarmFloor(Checked, omit_defaults=True):
    """The least number of warm workers of a workload. Raises INVALID where none can stay."""

    request: Request  #: of one job: its workload, tenant, and share of a device
    workers_min: Annotated[int, Meta(ge=1, le=WORKERS_MAX)]
    #: Empty: what the last worker of the workload had loaded on the same host.
    loads: Loads = ()

    def __post_init__(self) -> None:
        checked(self)
        if (why := floor_problem(self.request)) is not None:
            raise invalid(f"warm_min {why}")
        if self.request.workload is None:
            raise invalid("warm_min needs a workload: its name is what jobs find workers by")
        if (why := loads_problem(self.loads)) is not None:
            raise invalid(f"warm_loads {why}")


class HostFloor(Value):
    """The part of a floor that one device of a host keeps."""

    tenant: str
    workload: str  #: as in an install
    share: Share  #: as a lease of the workload would have it
    workers_min: int
    loads: tuple[tuple[str, str], ...] = ()


class FloorView(Value):
    """A floor, and what there is of it."""

    tenant: str
    workload: str  #: the published key instead, for callers that may not read the name
    workers_min: int
    workers: int  #: warm, or in use by leases of the workload, where the floor is kept
    why: str = ""  #: the reason why some are missing

    @property
    def text(self) -> str:
        """`kept warm: 1 of 2 workers of workload blast (tenant lab): no device has room`."""
        return f"kept warm: {self._text(f'workload {self.workload} (tenant {self.tenant})')}"

    @property
    def short_text(self) -> str:
        """`1 of 2 workers of its workload are kept warm: no device has room`."""
        return self._text("its workload are kept warm")

    def _text(self, workload: str) -> str:
        count = f"{min(self.workers, self.workers_min)} of {self.workers_min} workers"
        return f"{count} of {workload}{f': {self.why}' if self.why else ''}"

    def redacted(self) -> FloorView:
        """The same with the published key of the workload."""
        return replace(self, workload=workload_key(self.tenant, self.workload))


def floor_lines(floors: Iterable[FloorView], left_out: int) -> Iterator[str]:
    """A line for each floor, and one for those that are left out."""
    yield from (one.text for one in floors)
    if left_out:
        yield f"kept warm: {left_out} more floors"


_Floor = TypeVar("_Floor", WarmFloor, HostFloor)


def first_within(floors: Iterable[_Floor], bytes_max: int) -> tuple[_Floor, ...]:
    """The first floors that have so many bytes together as JSON, `FLOORS_MAX` at most."""
    found = list[_Floor]()
    for floor in floors:
        bytes_max -= len(encode_json(floor)) + 1
        if bytes_max < 0 or len(found) == FLOORS_MAX:
            break
        found.append(floor)
    return tuple(found)


def loads_problem(loads: Sequence[tuple[str, str]]) -> str | None:
    """Why a floor cannot load for so many or such long calls; None = it can."""
    if len(loads) > LOADS_MAX:
        return f"has at most {LOADS_MAX} operations, not {len(loads)}: name fewer"
    if any(len(word) > LOAD_CHARS_MAX for load in loads for word in load):
        return f"has at most {LOAD_CHARS_MAX} characters of arguments as JSON for one operation"
    if (size := len(encode_json(loads))) > LOADS_BYTES_MAX:
        return f"has at most {LOADS_BYTES_MAX} bytes as JSON, not {size}: name fewer"
    return None


def floor_problem(request: Request) -> str | None:
    """Why no worker of such a request can be kept loaded; None = it can."""
    if request.count != 1:
        return "is for functions with one device"
    if request.is_best_effort or (not request.memory_mib and not request.is_sized_by_device):
        return "needs a size: write `memory`, or `sharing: exclusive`"
    if request.middleware not in (None, "builtin"):
        return "keeps our own workers, and the middleware has others"
    if request.batch is not None and request.batch.joins:
        return "keeps workers of one job at a time; `batch` has a process of its own"
    if request.data_sets:
        return "does not fetch declared data sets; use `data`, which its hosts have"
    return None
