"""The parts of gpud that carry out the table of leases, each made once, and who does which step."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.tracing.span import Tracer
from gpu_scheduler.model import Door, EndReason
from remote_gpu.host.data.sets import DataSets
from remote_gpu.host.devices.card_checks import CardChecks
from remote_gpu.host.devices.excess import MemoryExcess
from remote_gpu.host.devices.excess_table import OnExcess
from remote_gpu.host.devices.residual_memory import MemoryProbe
from remote_gpu.host.gateway.gateway import Endpoints, Gateway
from remote_gpu.host.gateway.lease_ports import LeasePorts
from remote_gpu.host.gateway.relays import Relays
from remote_gpu.host.leases.leases import Leases
from remote_gpu.host.leases.steps import LeaseStep, LeaseStepKind
from remote_gpu.host.reports.sessions import SchedulerLink, SessionReports
from remote_gpu.host.reports.traces import HostTraces
from remote_gpu.host.runs.runs import FunctionRuns, RunSettings
from remote_gpu.host.sharing.turns import Turns
from remote_gpu.host.warm.workers import WarmWorkers
from remote_gpu.host.workers.endings import Endings
from remote_gpu.host.workers.lease_ends import LeaseEnds
from remote_gpu.host.workers.lease_workers import LeaseWorkers
from remote_gpu.host.workers.pool import WorkerPool
from remote_gpu.isolation.sandboxes import Sandboxes

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Everything beyond the leases: processes, devices, sockets, the scheduler."""

    pool: WorkerPool
    turns: Turns
    relays: Relays
    memory: MemoryProbe  #: shows whether a card is clean
    cards: CardChecks  #: checks a card of which a worker reports a fault
    endpoints: Endpoints
    scheduler: SchedulerLink
    tracer: Tracer
    sandboxes: Sandboxes
    runs: RunSettings


class Parts:
    """The parts beside the table of leases; none of them holds another that holds it."""

    def __init__(
        self,
        leases: Leases,
        outside: Outside,
        budget: Budget,
        nursery: Nursery,
        *,
        data: DataSets,
        warm_workers: bool = True,
        on_excess: OnExcess = OnExcess.END,
    ) -> None:
        """`warm_workers`: workers may outlive their leases; `on_excess`: of a card's memory."""
        self.leases = leases
        self.outside = outside
        self.data = data
        self.budget = budget
        relays, scheduler, cards = outside.relays, outside.scheduler, outside.cards
        traces = HostTraces(outside.tracer, outside.endpoints.host)
        endings = self.endings = Endings(leases, outside.memory, budget)
        changed = scheduler.report_soon
        warm = self.warm = WarmWorkers(
            leases, endings, changed, budget, nursery, enabled=warm_workers
        )
        workers = self.workers = LeaseWorkers(
            leases, outside.pool, data, warm, outside.turns, cards, traces, budget, nursery
        )
        sessions = self.sessions = SessionReports(scheduler, workers, warm, traces)
        ends = LeaseEnds(leases, endings, workers, warm, nursery, sessions.send_held)
        runs = self.runs = FunctionRuns(
            outside.runs, leases, outside.sandboxes, data, budget, nursery
        )
        gateway = self.gateway = Gateway(
            outside.endpoints, leases, workers, relays, runs, traces, budget, nursery, sessions
        )
        ports = self.ports = LeasePorts(outside.endpoints.ports, gateway.serve_port, nursery)
        context_bytes = cards.context_bytes
        self.excess = MemoryExcess(leases.table, outside.memory, context_bytes, on_excess)
        on = leases.on
        on(LeaseStepKind.PLACED, warm.placed, self._open_port)
        on(LeaseStepKind.UNPLACED, warm.unplaced)
        on(
            LeaseStepKind.KILL,
            lambda step: ends.begin(step, relays.leave(step.lease), runs.ending(step.lease)),
        )
        on(LeaseStepKind.LOAD, workers.load_ahead)
        on(LeaseStepKind.EVICT, warm.evict)
        on(LeaseStepKind.OPENED, sessions.opened)
        on(LeaseStepKind.RETURNED, sessions.returned)
        on(LeaseStepKind.UNBOUND, gateway.session_ended, lambda step: relays.unbind(step.lease))
        on(LeaseStepKind.UNBOUND, lambda step: ends.unbind(step.lease))
        on(LeaseStepKind.CUT, self._cut)
        on(LeaseStepKind.CONFLICT, _log_conflict)
        on(LeaseStepKind.CLOSED, lambda step: ports.close(step.lease))
        on(LeaseStepKind.CLOSED, gateway.session_ended, sessions.closed, runs.end)
        on(LeaseStepKind.CLOSED, lambda step: workers.forget(step.lease))

    def _cut(self, step: LeaseStep) -> None:
        """Report a lease whose processes are gone, unless its session is still open."""
        if self.leases.table.find(step.lease) is None:
            self.outside.scheduler.link.cut(step.lease)

    def _open_port(self, step: LeaseStep) -> None:
        """Listen for a lease with a port of its own, and report the address."""
        entry = self.leases.table.find(step.lease)
        if entry is None or entry.install.door is not Door.PORT:
            return
        try:
            address = self.ports.open(entry.install)
        except OSError as error:
            detail = f"no port can be opened for the lease: {error.strerror or error}"
            about = {"event": "no_port", "lease": step.lease, "why": detail}
            logger.error("no port", extra=about)
            self.leases.end(step.lease, EndReason.REVOKED, detail)
        else:
            self.outside.scheduler.link.door(step.lease, address)


def _log_conflict(step: LeaseStep) -> None:
    fields = {"event": "double_grant", "lease": step.lease, "why": step.detail}
    logger.error("the scheduler granted shares twice", extra=fields)
