"""The tables of the screen: columns, rows with texts and order; filter and order of each table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from enum import StrEnum

from corekit.cli.chart import Glyphs
from corekit.cli.table import Column
from corekit.cli.text import printable
from corekit.suggest import did_you_mean
from corekit.units import format_duration
from corekit.values import Value, replace
from gpu_scheduler.model import Health, HostState, Record, Step
from gpu_scheduler.protocol.answers import DeviceView, HostView, QueuedView
from gpu_scheduler.request_text import request_text
from gpu_scheduler.verdicts import Explanation
from orchgpu.cli.commands.operation.gpus import lent_shares, row_with_bars
from orchgpu.cli.jobs.report import job_columns
from orchgpu.cli.top.snapshot import Snapshot
from orchgpu.jobs.summary import shown_reason, summary_of

#: Those of `orchgpu gpus`, and the job; on a narrow screen other columns go first.
FLEET = (
    Column(name="HOST", shrink_order=4, width_min=8),
    Column(name="STATE"),
    Column(name="DEVICE", shrink_order=5, width_min=6),
    Column(name="KIND", drop_order=2),
    Column(name="MODEL", shrink_order=3, width_min=10, drop_order=6),
    Column(name="MEMORY", drop_order=11),
    Column(name="MEMORY FREE", drop_order=7),
    Column(name="COMPUTE", drop_order=10),
    Column(name="COMPUTE FREE", drop_order=3),
    Column(name="LEASES", drop_order=5),
    Column(name="WARM", drop_order=4),
    Column(name="USE", drop_order=8),
    Column(name="JOB", shrink_order=1, width_min=9, drop_order=9),
    Column(name="DETAIL", shrink_order=2, width_min=16, drop_order=1),
)
QUEUE = (
    Column(name="PLACE"),
    Column(name="ATTEMPT", shrink_order=2, width_min=12),
    Column(name="FUNCTION", shrink_order=3, width_min=10, drop_order=3),
    Column(name="TENANT", shrink_order=4, width_min=6, drop_order=2),
    Column(name="PRIORITY", drop_order=1),
    Column(name="WAITED"),
    Column(name="REASON"),
    Column(name="EXPECTED", drop_order=4),
    Column(name="WANTS", shrink_order=1, width_min=12, drop_order=5),
)
JOBS = job_columns(Column(name="CHANGED"))


class TableRow(Value):
    """One row: a name that stays, the texts of its columns, and what each column is sorted by."""

    key: str
    cells: tuple[str, ...]
    order: tuple[float | str, ...]
    job: str | None = None  #: the job that Enter opens
    host: str | None = None
    device: str | None = None
    index: int = 0  #: of the device in its host
    drained: bool = False


def fleet_rows(snapshot: Snapshot, glyphs: Glyphs) -> list[TableRow]:
    """One row per device; a host without devices has none."""
    jobs: dict[str, list[str]] = defaultdict(list)
    for lease in snapshot.leases:
        for share in lease.shares:
            jobs[share.device].append(lease.holder or lease.attempt)  # a lease of ssgm has no job
    return [
        _device_row(host, view, jobs.get(view.device.id, []), glyphs)
        for host in snapshot.hosts or ()
        for view in host.devices
    ]


def _device_row(host: HostView, view: DeviceView, jobs: Sequence[str], glyphs: Glyphs) -> TableRow:
    cells = [printable(cell) for cell in row_with_bars(host, view, glyphs)]
    more = f" +{len(jobs) - 1}" if len(jobs) > 1 else ""
    cells.insert(len(cells) - 1, f"{printable(jobs[0])}{more}" if jobs else "")
    memory, compute = lent_shares(view)
    device = view.device
    use = -1 if view.usage is None else view.usage.utilisation_pct
    return TableRow(
        key=f"{host.host}/{device.id}",
        cells=tuple(cells),
        order=(
            f"{host.host}/{device.index:06}",
            host.state.value,
            f"{device.health is Health.OK} {device.index:06}",
            device.kind.value,
            device.model,
            memory,
            view.memory_free_mib,
            compute,
            view.compute_free_pct,
            len(view.leases),
            len(view.residents),
            use,
            jobs[0] if jobs else "",
            device.detail,
        ),
        job=jobs[0] if jobs else None,
        host=host.host,
        device=device.id,
        index=device.index,
        drained=view.drained or host.state is HostState.DRAINED,
    )


def queue_rows(snapshot: Snapshot, now_s: float) -> list[TableRow]:
    """One row per waiting request, in the order of service."""
    functions: dict[str, str] = {
        record.holder: str(record.block.get("function") or "-") for record in snapshot.records or ()
    }
    queue = snapshot.queue.queue if snapshot.queue is not None else ()
    reasons = snapshot.reasons()
    return [
        _queued_row(
            one,
            snapshot.waits.get(one.attempt),
            reasons[one.attempt],
            functions.get(one.holder or "", "-"),
            now_s,
        )
        for one in queue
    ]


def _queued_row(
    one: QueuedView, why: Explanation | None, reason: str, function: str, now_s: float
) -> TableRow:
    waited_s = max(0.0, now_s - one.waiting_since_s)
    expected_s = why.expected_s if why is not None else None
    cells = (
        "-" if one.position is None else str(one.position),
        one.attempt,
        function,
        one.request.tenant,
        str(one.request.priority),
        format_duration(waited_s),
        reason,
        "-" if expected_s is None else f"in {format_duration(expected_s)}",
        request_text(one.request),
    )
    place = float("inf") if one.position is None else float(one.position)
    return TableRow(
        key=one.attempt,
        cells=tuple(printable(cell) for cell in cells),
        order=(
            place,
            one.attempt,
            function,
            one.request.tenant,
            -one.request.priority,
            waited_s,
            cells[6],
            float("inf") if expected_s is None else expected_s,
            one.request.memory_mib,
        ),
        job=one.holder,
    )


def job_rows(snapshot: Snapshot, now_s: float) -> list[TableRow]:
    """One row per job, the newest first."""
    reasons = snapshot.reasons()
    queue = snapshot.queue.queue if snapshot.queue else ()
    waits = {one.holder: reasons.get(one.attempt, "") for one in queue}
    return [
        _job_row(record, waits.get(record.holder, ""), now_s) for record in snapshot.records or ()
    ]


def _job_row(record: Record, waits: str, now_s: float) -> TableRow:
    job = summary_of(record)
    reason = waits if record.step is Step.WAITING and waits else job.reason
    ago_s = max(0.0, now_s - job.changed_s)
    texts = (
        job.job,
        job.function or "-",
        job.state,
        shown_reason(reason),
        str(job.attempt),
        f"{format_duration(ago_s)} ago",
        job.input or "-",
    )
    cells = tuple(printable(text) for text in texts)
    order: tuple[float | str, ...] = (*cells[:4], job.attempt, ago_s, cells[6])
    return TableRow(key=job.job, cells=cells, order=order, job=job.job)


class ViewName(StrEnum):
    """The views, in the order of their keys 1 to 4."""

    FLEET = "fleet"
    QUEUE = "queue"
    JOBS = "jobs"
    JOB = "job"


#: The columns of each view with a table.
COLUMNS = {ViewName.FLEET: FLEET, ViewName.QUEUE: QUEUE, ViewName.JOBS: JOBS}


class TableState(Value):
    """Filter and order of one table; `column` None: the order in which its rows are read."""

    filter: str = ""
    column: int | None = None
    descending: bool = False

    def shown(self, rows: Sequence[TableRow]) -> list[TableRow]:
        """The rows that contain every word of the filter, in order; the case does not matter."""
        words = self.filter.lower().split()
        found = (
            [row for row in rows if all(word in _text(row) for word in words)] if words else rows
        )
        if self.column is None:
            return list(found)
        column = self.column
        return sorted(found, key=lambda row: row.order[column], reverse=self.descending)

    def sorted_by_next(self, columns: int) -> TableState:
        """Sorted by the next column, then as read again."""
        following = 0 if self.column is None else self.column + 1
        return replace(self, column=following if following < columns else None, descending=False)

    def reversed(self) -> TableState:
        return replace(self, descending=not self.descending)

    def words(self, columns: Sequence[Column]) -> str:
        """Filter and order for people; "" without any."""
        parts = [f"/{self.filter}"] if self.filter else []
        if self.column is not None:
            parts.append(f"by {columns[self.column].name} {'↓' if self.descending else '↑'}")
        return "  ".join(parts)


def _text(row: TableRow) -> str:
    return "\n".join((row.key, *row.cells)).lower()


class Typed(Value):
    """A command after `:`; exactly one field is set, `problem` for one that is not known."""

    view: ViewName | None = None
    job: str | None = None
    leave: bool = False
    problem: str = ""


def typed(text: str) -> Typed:
    """`:fleet`, `:queue`, `:jobs`, `:job ID`, `:quit`; a prefix of a view's name is enough."""
    name, _, rest = text.strip().partition(" ")
    if name in ("q", "quit", "exit"):
        return Typed(leave=True)
    if name == ViewName.JOB and rest.strip():
        return Typed(job=rest.strip())
    if name in ("devices", "gpus"):
        return Typed(view=ViewName.FLEET)
    for view in (ViewName.FLEET, ViewName.QUEUE, ViewName.JOBS):
        if name and view.startswith(name):
            return Typed(view=view)
    hint = did_you_mean(name, [*ViewName, "quit"], otherwise="; views: fleet, queue, jobs, job ID")
    return Typed(problem=f"{name!r} is not a view{hint}")
