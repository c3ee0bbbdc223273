"""The loop of a fleet: look at scheduler and provider, decide, act.

Its state is what both say, plus a memory that a file keeps; a fleet that was killed continues from
there, and one without the file keeps hosts a little longer. Any number may run beside each other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from corekit.aio.files import replace_json
from corekit.aio.supervise import contained
from corekit.decode import decode_json_known, encode
from corekit.errors import AppError, ErrorCode, invalid
from corekit.ids import HostId
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import HostView
from orchgpu.fleet.core.decide import decide
from orchgpu.fleet.core.model import (
    Action,
    Decision,
    Demand,
    Drain,
    Host,
    Memory,
    Notice,
    Offers,
    Rules,
    Start,
    Stop,
    View,
    Withdraw,
)
from orchgpu.fleet.core.pools import with_moved
from orchgpu.fleet.offers import load_offers
from orchgpu.fleet.ports.port import FleetPort, PortGroup
from orchgpu.fleet.reports import report_of
from orchgpu.fleet.texts import action_text, notice_text

logger = logging.getLogger(__name__)

#: Between two looks for hosts that were ended.
_GONE_LOOK_S = 0.05


def groups_of(offers: Offers, memory: Memory) -> dict[str, str]:
    """Group at the port → pool; also groups that an offer had while hosts came there."""
    offered = {offer.at_port: offer.name for offer in offers.offers}
    kept = with_moved(memory, offers).pools
    return {one.group: name for name, one in kept.items() if one.group} | offered


async def groups_at(port: FleetPort, offers: Offers, memory: Memory) -> tuple[PortGroup, ...]:
    """The groups of all pools; without those of removed offers that are not there any more."""
    offered = [offer.at_port for offer in offers.offers]
    found = [*await port.list(offered)]
    for group in [one for one in groups_of(offers, memory) if one not in offered]:
        try:
            found += await port.list((group,))
        except AppError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            logger.warning("a removed offer is forgotten: %s", error.message)
    return tuple(found)


async def view_of(client: SchedulerClient, port: FleetPort, offers: Offers, memory: Memory) -> View:
    """The view of a decision.

    Leases are read after the hosts: a host that was seen drained gets no lease in between.
    """
    names = groups_of(offers, memory)
    groups = await groups_at(port, offers, memory)
    known = {view.host: view for view in (await client.inventory()).hosts}
    leases = Counter(
        host
        for lease in (await client.live_leases()).leases
        for host in {share.host for share in lease.shares}
    )
    waiting = await client.ask(ops.Demand())
    hosts = [
        _host(one.id, names[group.name], one.launched_s, known.get(HostId(one.id)), leases)
        for group in groups
        for one in group.hosts
    ]
    return View(
        demand=tuple(
            Demand(
                request=group.request,
                count=group.count,
                oldest_s=group.oldest_s,
                run_s=group.run_s,
                runs_s=group.runs_s,
            )
            for group in waiting.groups
        ),
        hosts=tuple(hosts),
        sizes={names[group.name]: group.size for group in groups},
        refusals={names[g.name]: g.refusal for g in groups if g.refusal},
    )


def _host(
    name: str, pool: str, launched_s: float | None, known: HostView | None, leases: Counter[HostId]
) -> Host:
    return Host(
        id=name,
        pool=pool,
        state=None if known is None else known.state,
        leaving=known is not None and known.draining is not None,
        leases=leases[HostId(name)],
        launched_s=launched_s,
    )


@dataclass
class MemoryFile:
    """The memory of a fleet, across its restarts."""

    path: Path | None
    _written: Memory | None = field(default=None)

    def read(self, rules: Rules) -> Memory:
        """The kept memory; a new one where there is none.

        One that cannot be read is a new one, too, unless the month is guarded, which is then
        counted by nothing: Raises INVALID.
        """
        if self.path is None:
            return Memory()
        try:
            return decode_json_known(Memory, self.path.read_bytes(), self.path.name)[0]
        except FileNotFoundError:
            return Memory()
        except (AppError, OSError) as error:
            text = f"the memory of the fleet cannot be read: {error}"
            if rules.usd_per_month_max is not None:
                text = f"{text}; it has what usd_per_month_max counts: repair it, or remove it"
                raise invalid(f"{text} to count the month from zero") from None
            logger.warning("%s", text)
            return Memory()

    def check(self, rules: Rules) -> None:
        """Raise INVALID for a guard of the month that would count from zero at each start."""
        if rules.usd_per_month_max is not None and self.path is None:
            text = "usd_per_month_max needs a file that keeps what is spent"
            raise invalid(f"{text}: give --memory FILE, or remove the key")

    def keep(self, memory: Memory) -> None:
        """Write it; what is lost by a full disk costs a little idle time."""
        if self.path is None or memory == self._written:
            return
        try:
            replace_json(self.path, encode(memory))
            self._written = memory
        except OSError as error:
            logger.warning("the memory of the fleet cannot be kept: %s", error)


class Fleet:
    """A running fleet."""

    def __init__(
        self,
        client: SchedulerClient,
        port: FleetPort,
        offers_file: Path,
        memory: MemoryFile,
        wall_s: Callable[[], float],
    ) -> None:
        """Raises INVALID for a wrong offers file, and for a month that nothing counts."""
        self._client, self._port, self._wall_s = client, port, wall_s
        self._file, self._stamp = offers_file, _stamp(offers_file)
        self._stamp_seen = self._stamp  #: at the last look; of a file that is written it changes
        self._offers = _loaded(offers_file)
        self._memory_file = memory
        memory.check(self._offers.rules)
        self._memory = memory.read(self._offers.rules)
        self._noticed: tuple[str, ...] = ()
        self._reports = True  #: False: the last report failed

    async def run(self, every_s: float) -> None:
        """Decide until cancelled. A scheduler or provider that does not answer is asked again."""
        while True:
            try:
                await self.step()
            except AppError as error:
                if error.code in (ErrorCode.DENIED, ErrorCode.INVALID):
                    raise
                logger.warning("the fleet waits: %s", error.message, extra={"event": "waits"})
            await asyncio.sleep(every_s)

    async def step(self) -> Decision:
        """One look, one decision, its actions."""
        await self._reread_offers()
        view = await view_of(self._client, self._port, self._offers, self._memory)
        decision = decide(view, self._offers, self._memory, self._wall_s())
        self._memory = decision.memory
        self._memory_file.keep(decision.memory)
        self._log_new(decision.notices)
        for action in decision.actions:
            with contained(action_text(action)):
                await self._do(action, view)
        await self._report(view, decision)
        return decision

    async def _report(self, view: View, decision: Decision) -> None:
        """Report the pools. No error ends the loop: the pools are only shown, and a scheduler of an
        older version does not know the op."""
        with contained("the report of the pools"):
            try:
                await self._client.ask(report_of(view, self._offers, decision, self._wall_s()))
                self._reports = True
            except AppError as error:
                if self._reports:
                    logger.warning("the scheduler takes no report of the fleet: %s", error.message)
                self._reports = False

    async def _do(self, action: Action, view: View) -> None:
        extra = {"event": "fleet", "reason": action.reason.value}
        logger.info("%s", action_text(action), extra=extra)
        groups = {pool: g for g, pool in groups_of(self._offers, self._memory).items()}
        match action:
            case Start():
                await self._port.grow(groups[action.offer], action.size)
            case Withdraw():
                await self._port.withdraw(groups[action.offer])
            case Drain():
                await self._client.ask(ops.Drain(host=HostId(action.host)))
            case Stop():
                pool = next(host.pool for host in view.hosts if host.id == action.host)
                await self._port.stop(groups[pool], action.host)

    async def stop_hosts(self, within_s: float) -> None:
        """End all hosts of all pools; returns when they are gone, or after the limit."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while left := [g for g in await self._groups() if g.hosts]:
                    for group in left:
                        for host in group.hosts:
                            await self._port.stop(group.name, host.id)
                    await asyncio.sleep(_GONE_LOOK_S)

    async def _groups(self) -> tuple[PortGroup, ...]:
        return await groups_at(self._port, self._offers, self._memory)

    def _log_new(self, notices: tuple[Notice, ...]) -> None:
        """Log the notices that are new."""
        codes = tuple(f"{one.code}:{one.values.get('offer', '')}" for one in notices)
        for code, notice in zip(codes, notices, strict=True):
            if code not in self._noticed:
                logger.warning("%s", notice_text(notice), extra={"event": notice.code.value})
        self._noticed = codes

    async def _reread_offers(self) -> None:
        """Take changed offers if the port has all of their groups.

        The file must be the same at two looks: half of a file may be valid, and drain busy hosts.
        """
        before, stamp = self._stamp_seen, _stamp(self._file)
        self._stamp_seen = stamp
        if stamp == self._stamp or stamp != before:
            return
        try:
            offers = _loaded(self._file)
            self._memory_file.check(offers.rules)
            await self._port.list([offer.at_port for offer in offers.offers])
            self._offers = offers
            logger.info("offers read", extra={"event": "offers"})
        except AppError as error:
            if error.code not in (ErrorCode.INVALID, ErrorCode.NOT_FOUND):
                raise  # the next step reads them again
            logger.error("the offers in force stay: %s", error.message, extra={"event": "offers"})
        self._stamp = stamp


def _loaded(file: Path) -> Offers:
    offers, warnings = load_offers(file)
    for warning in warnings:
        logger.warning("%s", warning, extra={"event": "offers"})
    return offers


def _stamp(file: Path) -> tuple[int, int, int]:
    try:
        status = file.stat()
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns
