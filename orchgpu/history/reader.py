"""Reader of the history: pages of jobs, spans of devices, series, failures, use by function.

Typed answers from the file that the consumer writes; any number of readers at the same time. A
window is `[since_s, until_s)` of the scheduler's wall clock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from corekit.errors import AppError, ErrorCode
from corekit.values import Value
from orchgpu.history.hosts import HostUse, PoolRow, host_use
from orchgpu.history.measures import (
    Span,
    clipped,
    divided_s,
    merged,
    per_step_s,
    quantile,
    steps,
    total_s,
)
from orchgpu.history.rows import JobRow
from orchgpu.history.run_uses import StepJobRow, WorkflowUse, workflow_uses
from orchgpu.history.store import check_version, errors_of, opened_for_reading
from orchgpu.history.uses import Use, UseSums
from orchgpu.jobs.measures import RFAST_WINDOW_S

T = TypeVar("T", bound=Value)

PAGE_MAX = 200
#: The most steps of a series.
STEPS_MAX = 2_000


class Window(Value):
    """An interval of the scheduler's wall clock."""

    since_s: float
    until_s: float

    @property
    def span(self) -> Span:
        return self.since_s, self.until_s


class LeaseSpan(Value):
    """The time for which a lease held a device, within a window."""

    start_s: float
    end_s: float
    lease: str
    job: str
    attempt: int
    function: str
    tenant: str
    reason: str | None  #: None: the lease is live
    cold: bool | None


class DeviceSpans(Value):
    """One device with its leases in a window."""

    device: str
    host: str
    name: str  #: "host/index kind model"
    spans: tuple[LeaseSpan, ...]

    @property
    def used_s(self) -> float:
        """Seconds in which at least one lease held it."""
        return total_s(merged((one.start_s, one.end_s) for one in self.spans))


class JobPage(Value):
    """Jobs, the one that changed last first."""

    items: tuple[JobRow, ...]
    next: str | None
    total: int


class Series(Value):
    """Measures per step. A latency is the median of what ended in the step; None: nothing did."""

    time_s: tuple[float, ...]  #: begin of each step
    step_s: float
    rfast: tuple[float, ...]  #: successes per second
    failed: tuple[int, ...]  #: jobs that ended without success
    rlat: tuple[float | None, ...]  #: upload to finished, of successes
    dlat: tuple[float | None, ...]  #: upload to the session's begin
    elat: tuple[float | None, ...]  #: the session's begin to the release of its devices
    cold_starts: tuple[int, ...]
    warm_starts: tuple[int, ...]
    utilisation: tuple[float | None, ...]  #: lent part of the time of all present devices


class FailureCount(Value):
    """Attempts that did not succeed, for one reason."""

    reason: str
    function: str
    attempts: int
    jobs: int


class HistoryReader:
    """The history, open for reading. Raises UNAVAILABLE where none was written yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.is_file():
            text = f"there is no history at {path}; `orchgpu collect` writes it while it runs"
            raise AppError(ErrorCode.UNAVAILABLE, text)
        with errors_of(path):
            self._db = opened_for_reading(path)
            try:
                check_version(self._db, path)
            except BaseException:
                self._db.close()
                raise

    def __enter__(self) -> HistoryReader:
        return self

    def __exit__(self, *error: object) -> None:
        self._db.close()

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with errors_of(self._path):
            return self._db.execute(query, values).fetchall()

    def _values(self, cls: type[T], query: str, *values: object) -> Iterator[T]:
        """One value for each row, whose columns are named as its fields."""
        with errors_of(self._path):
            rows = self._db.execute(query, values)
            names = [column[0] for column in rows.description]
            for row in rows:
                yield cls(**dict(zip(names, row, strict=True)))

    # --- jobs

    def jobs(
        self,
        *,
        state: str | None = None,
        function: str | None = None,
        tenant: str | None = None,
        text: str | None = None,
        since_s: float = 0.0,
        limit: int = PAGE_MAX,
        after: str | None = None,
    ) -> JobPage:
        """A page of jobs that meet all conditions; `text` is part of the id or of the key."""
        wanted: list[tuple[str, object]] = [("changed_s >= ?", since_s)]
        for name, value in (("state", state), ("function", function), ("tenant", tenant)):
            wanted += [] if value is None else [(f"{name} = ?", value)]
        conditions = [condition for condition, _ in wanted]
        values = [value for _, value in wanted]
        if text:
            conditions.append("(instr(job, ?) OR instr(key, ?))")
            values += [text, text]
        where = " AND ".join(conditions)
        ((total,),) = self._rows(f"SELECT count(*) FROM jobs WHERE {where}", *values)
        if after is not None:
            where += " AND (changed_s, job) < (?, ?)"
            values += _cursor(after)
        query = f"SELECT * FROM jobs WHERE {where} ORDER BY changed_s DESC, job DESC LIMIT ?"
        limit = max(1, min(limit, PAGE_MAX))
        found = list(self._values(JobRow, query, *values, limit + 1))
        items = tuple(found[:limit])
        last = f"{items[-1].changed_s!r}~{items[-1].job}" if len(found) > limit else None
        return JobPage(items=items, next=last, total=total)

    def ended(self, window: Window) -> Iterator[JobRow]:
        """The jobs that ended in the window, in the order of their ends."""
        query = "SELECT * FROM jobs WHERE ended_s >= ? AND ended_s < ? ORDER BY ended_s"
        return self._values(JobRow, query, *window.span)

    def states(self, window: Window) -> dict[str, int]:
        """The number of jobs by state, of those that changed in the window."""
        return dict(
            self._rows(
                "SELECT state, count(*) FROM jobs WHERE changed_s >= ? AND changed_s < ? "
                "GROUP BY state ORDER BY state",
                *window.span,
            )
        )

    def failures(self, window: Window) -> tuple[FailureCount, ...]:
        """Attempts without success that ended in the window, by reason; the most first.

        Withdrawn ones, which did not begin, are left out.
        """
        return tuple(
            self._values(
                FailureCount,
                "SELECT reason, function, count(*) AS attempts, count(DISTINCT job) AS jobs "
                "FROM attempts WHERE ended_s >= ? AND ended_s < ? AND outcome != 'SUCCEEDED' "
                "AND reason != 'WITHDRAWN' GROUP BY reason, function "
                "ORDER BY attempts DESC, reason, function",
                *window.span,
            )
        )

    def runs(self, window: Window) -> tuple[WorkflowUse, ...]:
        """The workflows with runs that ended in the window, by name."""
        if not self._has("steps"):
            return ()
        rows = self._values(
            StepJobRow,
            "SELECT s.workflow, s.run, s.step, j.state, coalesce(j.uploaded_s, j.received_s) "
            "AS began_s, j.running_s, j.ended_s FROM steps s JOIN jobs j ON j.job = s.job "
            "WHERE s.run IN (SELECT s.run FROM jobs j JOIN steps s ON s.job = j.job "
            "WHERE j.ended_s >= ? AND j.ended_s < ?)",
            *window.span,
        )
        return workflow_uses(rows, window.until_s)

    # --- devices

    def most_used(self, window: Window, limit: int) -> tuple[tuple[DeviceSpans, ...], int]:
        """The devices used longest in the window, and the number of all that were there."""
        spans = self._spans(window)
        every = [
            DeviceSpans(device=device, host=host, name=name, spans=tuple(spans.get(device, ())))
            for device, (host, name) in sorted(self._present(window).items())
        ]
        return tuple(sorted(every, key=lambda one: -one.used_s)[:limit]), len(every)

    def _present(self, window: Window) -> dict[str, tuple[str, str]]:
        """Device → its host and its name, of all devices of the window."""
        found: dict[str, tuple[str, str]] = {}
        for device, host in self._rows(
            "SELECT device, host FROM presences "
            "WHERE since_s < ? AND coalesce(until_s, ?) > ? ORDER BY since_s",
            window.until_s,
            window.until_s,
            window.since_s,
        ):
            found[device] = (host, device)
        for device, host, name in self._rows(
            # a CROSS JOIN begins with the leases of the window; else all shares would be passed
            f"SELECT s.device, s.host, {_NAME} FROM leases l CROSS JOIN shares s "
            f"ON s.lease = l.lease WHERE {_OVERLAPS} GROUP BY s.device",
            *_overlap(window),
        ):
            found[device] = (host, name)
        return found

    def _spans(self, window: Window) -> dict[str, list[LeaseSpan]]:
        """Device → spans of its leases in the window."""
        found: dict[str, list[LeaseSpan]] = {}
        for device, start_s, end_s, loading_s, *rest in self._rows(
            "SELECT s.device, l.granted_s, coalesce(l.freed_s, l.ended_s, ?), l.loading_s, "
            "l.lease, l.job, l.attempt, l.function, l.tenant, l.reason "
            f"FROM leases l JOIN shares s ON s.lease = l.lease WHERE {_OVERLAPS} "
            "ORDER BY l.granted_s, l.lease",
            window.until_s,
            *_overlap(window),
        ):
            part = clipped((start_s, end_s), window.span)
            if part is None:
                continue
            lease, job, attempt, function, tenant, reason = rest
            span = LeaseSpan(
                start_s=part[0],
                end_s=part[1],
                lease=lease,
                job=job,
                attempt=attempt,
                function=function,
                tenant=tenant,
                reason=reason,
                cold=None if loading_s is None else loading_s > 0,
            )
            found.setdefault(device, []).append(span)
        return found

    # --- measures

    def series(self, window: Window, step_s: float = RFAST_WINDOW_S) -> Series:
        """Measures per step; a step has at least RFast's 10 s, and a series `STEPS_MAX` of them."""
        step_s = max(step_s, RFAST_WINDOW_S, (window.until_s - window.since_s) / STEPS_MAX)
        edges_s = steps(window.since_s, window.until_s, step_s)
        count = len(edges_s) - 1
        rlat: list[list[float]] = [[] for _ in range(count)]
        dlat: list[list[float]] = [[] for _ in range(count)]
        elat: list[list[float]] = [[] for _ in range(count)]
        good, bad, cold, warm = ([0] * count for _ in range(4))

        def step_of(at_s: float) -> int:
            return min(count - 1, int((at_s - window.since_s) // step_s))

        for state, start, running, ended in self._rows(
            "SELECT state, coalesce(uploaded_s, received_s), running_s, ended_s FROM jobs "
            "WHERE ended_s >= ? AND ended_s < ?",
            *window.span,
        ):
            step = step_of(ended)
            if state != "SUCCEEDED":
                bad[step] += 1
                continue
            good[step] += 1
            if start is not None:
                rlat[step].append(ended - start)
                if running is not None:
                    dlat[step].append(running - start)
        for active, freed, ended, loading in self._rows(
            "SELECT active_s, coalesce(freed_s, ended_s), ended_s, loading_s FROM leases "
            "WHERE ended_s >= ? AND ended_s < ? AND active_s IS NOT NULL",
            *window.span,
        ):
            step = step_of(ended)
            elat[step].append(freed - active)
            if loading is not None:
                (cold if loading > 0 else warm)[step] += 1
        return Series(
            time_s=tuple(edges_s[:-1]),
            step_s=step_s,
            rfast=tuple(number / step_s for number in good),
            failed=tuple(bad),
            rlat=tuple(quantile(values, 0.5) for values in rlat),
            dlat=tuple(quantile(values, 0.5) for values in dlat),
            elat=tuple(quantile(values, 0.5) for values in elat),
            cold_starts=tuple(cold),
            warm_starts=tuple(warm),
            utilisation=self._utilisation(window, edges_s),
        )

    def _utilisation(self, window: Window, edges_s: Sequence[float]) -> tuple[float | None, ...]:
        used: list[Span] = []
        there: list[Span] = []
        spans = self._spans(window)
        for device, present in self._presences(window).items():
            held = merged((one.start_s, one.end_s) for one in spans.get(device, ()))
            used += held
            # a lease shows that its device is there, also where its presence was not seen
            there += merged([*present, *held])
        sums = zip(per_step_s(used, edges_s), per_step_s(there, edges_s), strict=True)
        # sums of thousands of spans are exact to microseconds
        return tuple(
            None if there_s < 1e-6 else min(1.0, used_s / there_s) for used_s, there_s in sums
        )

    def _presences(self, window: Window) -> dict[str, list[Span]]:
        found: dict[str, list[Span]] = {device: [] for device in self._present(window)}
        for device, since, until in self._rows(
            "SELECT device, since_s, coalesce(until_s, ?) FROM presences", window.until_s
        ):
            part = clipped((since, until), window.span)
            if part is not None:
                found[device].append(part)
        return found

    def uses(self, window: Window) -> tuple[Use, ...]:
        """Use of devices by each function and tenant in the window, the most time first."""
        device_s: dict[str, float] = {}
        for spans in self._spans(window).values():
            of_leases = {one.lease: (one.start_s, one.end_s) for one in spans}
            for id_, seconds in divided_s(of_leases).items():
                device_s[id_] = device_s.get(id_, 0.0) + seconds
        waits_s = self._waits_s(window)
        found: dict[tuple[str, str], UseSums] = {}
        for function, tenant, lease, granted, ended, loading in self._rows(
            "SELECT l.function, l.tenant, l.lease, l.granted_s, coalesce(l.ended_s, ?), l.loading_s"
            f" FROM leases l WHERE {_OVERLAPS}",
            window.until_s,
            *_overlap(window),
        ):
            sums = found.setdefault((function, tenant), UseSums())
            part = clipped((granted, ended), window.span)
            sums.lease(part, device_s.get(lease, 0.0), loading, waits_s.get(lease, 0.0))
        for function, tenant, state, received, reserved in self._rows(
            "SELECT function, tenant, state, received_s, reserved_s FROM jobs "
            "WHERE ended_s >= ? AND ended_s < ?",
            *window.span,
        ):
            sums = found.setdefault((function, tenant), UseSums())
            sums.job(state, received, reserved)
        uses = [sums.use(function, tenant) for (function, tenant), sums in found.items()]
        return tuple(sorted(uses, key=lambda one: (-one.device_s, one.function, one.tenant)))

    def hosts(self, window: Window, step_s: float) -> HostUse | None:
        """Hosts that come and go, with requests and leases over time; None: there was no pool."""
        if not self._has("pools"):
            return None
        overlaps = "since_s < ? AND (until_s > ? OR until_s IS NULL)"
        rows = self._values(
            PoolRow,
            "SELECT pool, since_s, coalesce(until_s, ?) AS until_s, hosts, usd_per_h FROM pools "
            f"WHERE {overlaps}",
            window.until_s,
            *_overlap(window),
        )
        pools = tuple(rows)
        if not pools:
            return None
        waiting = self._rows(
            f"SELECT waiting_s, {_WAITED_UNTIL} FROM jobs "
            "WHERE waiting_s < ? AND (changed_s > ? OR ended_s IS NULL)",
            window.until_s,
            *_overlap(window),
        )
        leases = self._rows(
            f"SELECT granted_s, coalesce(freed_s, ended_s, ?) FROM leases l WHERE {_OVERLAPS}",
            window.until_s,
            *_overlap(window),
        )
        edges_s = steps(window.since_s, window.until_s, step_s)
        return host_use(pools, waiting, leases, edges_s, window.span)

    def _waits_s(self, window: Window) -> dict[str, float]:
        """Lease → the time in the window for which its function waited for its device."""
        if not self._has("waits"):
            return {}
        found: dict[str, float] = {}
        for lease, since_s, until_s in self._rows(
            "SELECT lease, since_s, coalesce(until_s, ?) FROM waits WHERE since_s < ? "
            "AND (until_s > ? OR until_s IS NULL)",
            window.until_s,
            *_overlap(window),
        ):
            if (part := clipped((since_s, until_s), window.span)) is not None:
                found[lease] = part[1] - part[0]
        return found

    def _has(self, table: str) -> bool:
        """False for a table of a file that an older version wrote."""
        query = "SELECT 1 FROM sqlite_master WHERE name = ?"
        return bool(self._rows(query, table))


#: Name of the device of a share `s`.
_NAME = "s.host || '/' || s.position || ' ' || s.kind || ' ' || s.model"
#: End of the wait of a job's newest attempt, or a value given.
_WAITED_UNTIL = "CASE WHEN reserved_s >= waiting_s THEN reserved_s ELSE coalesce(ended_s, ?) END"
#: Condition that a lease `l` overlaps a window; `_overlap` has its values.
_OVERLAPS = "l.granted_s < ? AND (l.ended_s > ? OR l.ended_s IS NULL)"


def _overlap(window: Window) -> tuple[float, float]:
    return window.until_s, window.since_s


def _cursor(after: str) -> tuple[float, str]:
    changed, _, job = after.partition("~")
    with contextlib.suppress(ValueError):
        return float(changed), job
    raise AppError(ErrorCode.INVALID, f"{after!r:.80} is not the cursor of a page")
