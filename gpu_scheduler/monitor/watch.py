"""What is known of a host's devices now, however its probe does.

Looking and telling are apart: a driver that hangs delays a look, never a report. Told is only what
changed, because ten thousand devices of which nothing is new are most of what a scheduler hears.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Protocol

from corekit.errors import AppError, ErrorCode
from corekit.ids import DeviceId
from gpu_scheduler.model import Device, Health, Symptom, Usage
from gpu_scheduler.monitor.device_report import fitting
from gpu_scheduler.monitor.health import Fault, HeldMemory, with_faults
from gpu_scheduler.monitor.ports import Probe
from gpu_scheduler.protocol.host import Report

logger = logging.getLogger(__name__)

#: An operator's mistake in a file says nothing about the devices; a silent driver does.
_SAYS_NOTHING = (ErrorCode.INVALID, ErrorCode.NOT_FOUND)


class LastSeen:
    """A `Probe` that does not fail any more once it has seen something.

    Its devices are then SUSPECT as last seen, and BAD after `bad_after_s` of a driver that does not
    answer: their leases cannot make progress.
    """

    def __init__(self, probe: Probe, bad_after_s: float) -> None:
        self._probe = probe
        self._bad_after_s = bad_after_s
        self._seen: tuple[Device, ...] | None = None
        self._failing_since_s: float | None = None

    async def devices(self) -> tuple[Device, ...]:
        """Raises the probe's AppError only while nothing was ever seen."""
        try:
            self._seen = await self._probe.devices()
        except AppError as error:
            if self._seen is None:
                raise
            return self._failing(self._seen, error)
        self._failing_since_s = None
        return self._seen

    async def usage(self) -> tuple[Usage, ...]:
        """None while it fails."""
        try:
            return () if self._failing_since_s is not None else await self._probe.usage()
        except AppError as error:
            logger.warning("probe: %s", error.message)
            return ()

    async def close(self) -> None:
        """Close the probe."""
        await self._probe.close()

    def _failing(self, seen: tuple[Device, ...], error: AppError) -> tuple[Device, ...]:
        now_s = asyncio.get_running_loop().time()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
            logger.warning("probe: %s", error.message)
        long = now_s - self._failing_since_s >= self._bad_after_s
        fault = Fault(
            health=Health.BAD if long and error.code not in _SAYS_NOTHING else Health.SUSPECT,
            symptom=Symptom.HUNG if error.code is ErrorCode.TIMEOUT else Symptom.PROBE,
            detail=f"probe failed: {error.message}",
        )
        return with_faults(seen, dict.fromkeys((device.id for device in seen), fault))


class LeaseSource(Protocol):
    """What a watch must know of the program that lends the devices."""

    def seen(self, devices: tuple[Device, ...]) -> None:
        """What is there to lend, after every look."""
        ...

    def leased(self) -> Collection[DeviceId]:
        """Devices that a lease may be using."""
        ...

    def faults(self) -> Mapping[DeviceId, Fault]:
        """What the program itself knows against its devices."""
        ...


class Watch:
    """Looks again and again, and knows what of it is news."""

    def __init__(self, probe: Probe, lends: LeaseSource) -> None:
        self._probe = probe
        self._lends = lends
        self._held = HeldMemory()
        self._seen: tuple[Device, ...] = ()  #: as far as it fits into a message
        self._cut = False  #: something does not, and that was told
        self._held_faults: Mapping[DeviceId, Fault] = {}
        self._usage: tuple[Usage, ...] = ()
        self._told_devices: tuple[Device, ...] | None = None  # None: not known there
        self._told_usage: dict[DeviceId, Usage] = {}

    async def look(self) -> None:
        """Look once. Raises the probe's AppError."""
        seen = await self._probe.devices()
        self._usage = await self._probe.usage()
        self._held_faults = self._held.faults(seen, self._usage, self._lends.leased())
        self._seen, left_out = fitting(seen)
        if left_out and not self._cut:
            text = "%d warm keys have no room in what the scheduler is told of the devices"
            logger.warning(text, left_out)
        self._cut = left_out > 0
        self._lends.seen(seen)

    @property
    def devices(self) -> tuple[Device, ...]:
        """As the scheduler should know them now."""
        faults = {**self._held_faults, **self._lends.faults()}
        return with_faults(self._seen, faults) if faults else self._seen

    def news(self) -> Report:
        """What the scheduler does not know yet."""
        devices = self.devices
        known = {device.id for device in devices}
        return Report(
            devices=None if devices == self._told_devices else devices,
            usage=tuple(
                one
                for one in self._usage
                if one.device in known and self._told_usage.get(one.device) != one
            ),
        )

    def told(self, report: Report) -> None:
        """The scheduler has taken it."""
        if report.devices is not None:
            self._told_devices = report.devices
        self._told_usage.update((one.device, one) for one in report.usage)

    def forget_reported(self) -> None:
        """Nothing is known there any more: the next report is whole."""
        self._told_devices = None
        self._told_usage.clear()
