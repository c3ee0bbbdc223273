"""The tables of the screen: columns, rows with texts and order; filter and order of each table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

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
from orchgpu.cli.top.snapshot import ScreenData
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


#: The text of a column, and what it is sorted by.
Cell = tuple[str, float | str]


def _row(key: str, *cells: Cell, **fields: Any) -> TableRow:
    texts = tuple(printable(text) for text, _ in cells)
    return TableRow(key=key, cells=texts, order=tuple(order for _, order in cells), **fields)


def fleet_rows(snapshot: ScreenData, glyphs: Glyphs) -> list[TableRow]:
    """One row per device; a host without devices has none."""
    jobs: dict[str, list[str]] = defaultdict(list)
    for lease in snapshot.leases:
        for share in () if lease.after else lease.shares:
            jobs[share.device].append(lease.holder or lease.attempt)  # a lease of ssgm has no job
    return [
        _device_row(host, view, jobs.get(view.device.id, []), glyphs)
        for host in snapshot.hosts or ()
        for view in host.devices
    ]


def _device_row(host: HostView, view: DeviceView, jobs: Sequence[str], glyphs: Glyphs) -> TableRow:
    *texts, detail = row_with_bars(host, view, glyphs)
    more = f" +{len(jobs) - 1}" if len(jobs) > 1 else ""
    first = jobs[0] if jobs else None
    memory, compute = lent_shares(view)
    device = view.device
    order: tuple[float | str, ...] = (
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
        -1 if view.usage is None else view.usage.utilisation_pct,
    )
    return _row(
        f"{host.host}/{device.id}",
        *zip(texts, order, strict=True),
        (f"{first}{more}" if first else "", first or ""),
        (detail, detail),
        job=first,
        host=host.host,
        device=device.id,
        index=device.index,
        drained=view.drained or host.state is HostState.DRAINED,
    )


def queue_rows(snapshot: ScreenData, now_s: float) -> list[TableRow]:
    """One row per waiting request, in the order of service."""
    functions: dict[str, str] = {
        record.holder: str(record.block.get("function") or "-") for record in snapshot.records or ()
    }
    reasons = snapshot.reasons()
    return [
        _queued_row(
            queued,
            snapshot.waits.get(queued.attempt),
            reasons[queued.attempt],
            functions.get(queued.holder or "", "-"),
            now_s,
        )
        for queued in (snapshot.queue.queue if snapshot.queue is not None else ())
    ]


def _queued_row(
    queued: QueuedView, why: Explanation | None, reason: str, function: str, now_s: float
) -> TableRow:
    last = float("inf")
    request, position = queued.request, queued.position
    waited_s = max(0.0, now_s - queued.waiting_since_s)
    expected_s = why.expected_s if why is not None else None
    return _row(
        queued.attempt,
        ("-", last) if position is None else (str(position), float(position)),
        (queued.attempt, queued.attempt),
        (function, function),
        (request.tenant, request.tenant),
        (str(request.priority), -request.priority),
        (format_duration(waited_s), waited_s),
        (reason, reason),
        ("-", last) if expected_s is None else (f"in {format_duration(expected_s)}", expected_s),
        (request_text(request), request.memory_mib),
        job=queued.holder,
    )


def job_rows(snapshot: ScreenData, now_s: float) -> list[TableRow]:
    """One row per job, the newest first."""
    reasons = snapshot.reasons()
    queue = snapshot.queue.queue if snapshot.queue else ()
    waits = {queued.holder: reasons.get(queued.attempt, "") for queued in queue}
    return [
        _job_row(record, waits.get(record.holder, ""), now_s) for record in snapshot.records or ()
    ]


def _job_row(record: Record, waits: str, now_s: float) -> TableRow:
    job = summary_of(record)
    reason = shown_reason(waits if record.step is Step.WAITING and waits else job.reason)
    ago_s = max(0.0, now_s - job.changed_s)
    function, source = job.function or "-", job.files_text or job.input or "-"
    return _row(
        job.job,
        *((text, text) for text in (job.job, function, job.state, reason)),
        (job.attempt_text, job.attempt),
        (f"{format_duration(ago_s)} ago", ago_s),
        (source, source),
        job=job.job,
    )


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
