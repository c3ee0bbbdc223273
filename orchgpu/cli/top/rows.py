"""The tables of the screen: columns, and rows with their texts and their order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from corekit.cli.chart import Glyphs
from corekit.cli.table import Column
from corekit.cli.text import printable
from corekit.units import format_duration
from corekit.values import Value
from gpu_scheduler.model import Health, HostState, Record, Step
from gpu_scheduler.protocol.answers import DeviceView, HostView, QueuedView
from gpu_scheduler.request_text import request_text
from gpu_scheduler.verdicts import Explanation
from orchgpu.cli.commands.operation.gpus import lent_shares, row_with_bars
from orchgpu.cli.top.snapshot import Snapshot
from orchgpu.jobs.records import reason_of, record_json, shown_reason, state_of

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
JOBS = (
    Column(name="JOB", ids=True, shrink_order=2),
    Column(name="FUNCTION", shrink_order=3, width_min=10, drop_order=3),
    Column(name="STATE"),
    Column(name="REASON", shrink_order=4, width_min=8, drop_order=4),
    Column(name="ATTEMPT", drop_order=1),
    Column(name="CHANGED"),
    Column(name="INPUT", shrink_order=1, width_min=14, keep="end", drop_order=2),
)


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
    attempts = {one.holder: one.attempt for one in (snapshot.queue.queue if snapshot.queue else ())}
    reasons = snapshot.reasons()
    return [
        _job_row(record, reasons.get(attempts.get(record.holder, ""), ""), now_s)
        for record in snapshot.records or ()
    ]


def _job_row(record: Record, waits: str, now_s: float) -> TableRow:
    known = record_json(record)
    reason = reason_of(record)
    if record.step is Step.WAITING and waits:
        reason = waits
    ago_s = max(0.0, now_s - record.updated_s)
    state = state_of(record)
    texts = (
        record.holder,
        str(known["function"] or "-"),
        state,
        shown_reason(reason),
        str(record.attempt),
        f"{format_duration(ago_s)} ago",
        str(known["input"] or "-"),
    )
    cells = tuple(printable(text) for text in texts)
    order: tuple[float | str, ...] = (*cells[:4], record.attempt, ago_s, cells[6])
    return TableRow(key=record.holder, cells=cells, order=order, job=record.holder)
