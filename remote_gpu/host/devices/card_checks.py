"""Checks of NVIDIA cards: before they are lent, and after a worker has reported a fault.

A worker is not trusted: its report ends its own lease, and makes the card SUSPECT only until a
process of gpud has checked it. A card that fails the check is BAD, so that the scheduler ends its
leases, and is checked again and again until it works.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.ids import DeviceId
from gpu_scheduler.model import Device, Health, Share, Symptom
from gpu_scheduler.monitor.health import DeviceFault
from remote_gpu.host.environment import spawner_variables
from remote_gpu.host.warm.table import is_card

logger = logging.getLogger(__name__)

_MODULE = "remote_gpu.worker.cards.check"
#: SIGKILL takes milliseconds, except from a process that sleeps inside a driver.
_KILL_S_MAX = 2.0
_REASON_CHARS_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of one check."""

    context_bytes: int = 0
    symptom: Symptom | None = None  #: None: the card works
    why: str = ""


class CardChecks:
    """The checks of a host's cards; lives in the event loop."""

    def __init__(
        self, budget: Budget, nursery: Nursery, changed: Callable[[], None] = lambda: None
    ) -> None:
        """`changed`: called when the faults have changed."""
        self._budget = budget
        self._nursery = nursery
        self.changed = changed
        self._faults: dict[DeviceId, DeviceFault] = {}
        self._tasks: dict[DeviceId, asyncio.Task[None]] = {}
        self._context_bytes: dict[DeviceId, int] = {}

    def faults(self) -> Mapping[DeviceId, DeviceFault]:
        """The cards that are being checked, or have failed their last check."""
        return self._faults

    def context_bytes(self, device: DeviceId) -> int:
        """The memory of a card that one context takes; 0 = unknown."""
        return self._context_bytes.get(device, 0)

    async def first(self, devices: Iterable[Device]) -> None:
        """Check cards at the host's start, one after another; only those that can be read."""
        if importlib.util.find_spec("cuda") is None:  # this host lends cards to other servers only
            return
        for device in devices:
            if is_card(device) and device.health is not Health.BAD:
                found = await self._check(device.id)
                self._context_bytes[device.id] = found.context_bytes
                if found.symptom is not None:
                    self._start(device.id, found.why)

    def reported(self, device: DeviceId, reason: str) -> None:
        """Check a card of which a worker reports a fault."""
        if device not in self._tasks:
            self._start(device, reason)

    def _start(self, device: DeviceId, reason: str) -> None:
        self._set(device, Health.SUSPECT, Symptom.OTHER, f"it is being checked: {reason}")
        check = functools.partial(self._until_clean, device, reason)
        task = self._tasks[device] = self._nursery.start_end(check, "card check")
        task.add_done_callback(lambda _: self._tasks.pop(device))

    async def _until_clean(self, device: DeviceId, reason: str) -> None:
        while (found := await self._check(device)).symptom is not None:
            detail = f"{found.why} (a check, after: {reason})"
            self._set(device, Health.BAD, found.symptom, detail)
            await asyncio.sleep(self._budget.host_reconcile_s)
        logger.info("a card works", extra={"event": "card_works", "device": device})
        del self._faults[device]
        self.changed()

    def _set(self, device: DeviceId, health: Health, symptom: Symptom, detail: str) -> None:
        fault = DeviceFault(health=health, symptom=symptom, detail=detail[:_REASON_CHARS_MAX])
        if self._faults.get(device) != fault:
            about = {"event": "card_fault", "device": device, "why": detail}
            logger.error("a card is %s", health.value, extra=about)
            self._faults[device] = fault
            self.changed()

    async def _check(self, device: DeviceId) -> Found:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            _MODULE,
            device,
            env=spawner_variables(os.environ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(self._budget.card_check_s):
                output, _ = await process.communicate()
        except TimeoutError:
            await self._kill(process, device)
            limit = f"within {self._budget.card_check_s:g} s"
            return Found(symptom=Symptom.HUNG, why=f"the driver did not complete a check {limit}")
        except BaseException:
            process.kill()
            raise
        return _read(output)

    async def _kill(self, process: asyncio.subprocess.Process, device: DeviceId) -> None:
        """End a process that hangs. One that sleeps in the driver is awaited: more would too."""
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        ended = asyncio.ensure_future(process.wait())
        if not (await asyncio.wait({ended}, timeout=_KILL_S_MAX))[0]:
            detail = f"process {process.pid} hangs in the driver and cannot be killed"
            self._set(device, Health.BAD, Symptom.HUNG, detail)
            await ended


def read_fault(shares: Iterable[Share], report: object) -> tuple[DeviceId, str]:
    """The card and the reason of a report. Raises ValueError for a device not of these shares."""
    if not isinstance(report, list) or len(report) != 2 or not isinstance(report[1], str):
        raise ValueError("a fault is not a device and a reason")
    index, reason = report
    for share in shares:
        if type(index) is int and share.index == index and is_card(share):
            return share.device, reason[:_REASON_CHARS_MAX]
    raise ValueError("a fault is reported of a device that is not a card of the lease")


def _read(output: bytes) -> Found:
    try:
        value = json.loads(output)
    except ValueError:
        return Found(symptom=Symptom.PROBE, why="the driver ended the process of the check")
    if not isinstance(value, dict) or "error" in value:
        why = str(value["error"]) if isinstance(value, dict) else "the check printed no object"
        return Found(symptom=Symptom.ECC if "ECC" in why else Symptom.PROBE, why=why)
    return Found(context_bytes=int(value["context_bytes"]))
