"""Current devices of a host, even while its probe fails, and the changes to report.

Polling and reporting are separate: a driver that hangs delays a poll, never a report. Only changes
are reported, because most devices of a large system do not change from one report to the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from corekit.errors import AppError, ErrorCode
from corekit.ids import DeviceId
from gpu_scheduler.data_sets import HeldData
from gpu_scheduler.model import Device, DeviceResidents, Health, Resident, Symptom, Usage
from gpu_scheduler.monitor.device_report import ReportedData, ReportedResidents, without_excess_keys
from gpu_scheduler.monitor.health import DeviceFault, HeldMemory, with_faults
from gpu_scheduler.monitor.ports import (
    DataSource,
    DeviceProcess,
    LeaseSource,
    ListsProcesses,
    Probe,
)
from gpu_scheduler.protocol.host import Report

logger = logging.getLogger(__name__)

#: Failures of a probe that are not faults of devices: mistakes in an operator's file.
_FILE_ERRORS = (ErrorCode.INVALID, ErrorCode.NOT_FOUND)


class LastSeen:
    """A `Probe` that does not fail after its first success: it repeats the last devices.

    They are SUSPECT then, and BAD once the driver has not answered for `bad_after_s`: their leases
    cannot make progress.
    """

    def __init__(self, probe: Probe, bad_after_s: float) -> None:
        self._probe = probe
        self._bad_after_s = bad_after_s
        self._seen: tuple[Device, ...] | None = None
        self._failing_since_s: float | None = None

    async def devices(self) -> tuple[Device, ...]:
        """Raises the probe's AppError only before its first success."""
        try:
            self._seen = await self._probe.devices()
        except AppError as error:
            if self._seen is None:
                raise
            return self._failing(self._seen, error)
        self._failing_since_s = None
        return self._seen

    async def usage(self) -> tuple[Usage, ...]:
        """Empty while the probe fails."""
        try:
            return () if self._failing_since_s is not None else await self._probe.usage()
        except AppError as error:
            logger.warning("probe: %s", error.message)
            return ()

    async def processes(self) -> tuple[DeviceProcess, ...]:
        """Those of the newest `devices`; none while the probe fails, or of one that lists none."""
        if self._failing_since_s is not None or not isinstance(self._probe, ListsProcesses):
            return ()
        return await self._probe.processes()

    async def close(self) -> None:
        """Close the probe."""
        await self._probe.close()

    def _failing(self, seen: tuple[Device, ...], error: AppError) -> tuple[Device, ...]:
        now_s = asyncio.get_running_loop().time()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
            logger.warning("probe: %s", error.message)
        long = now_s - self._failing_since_s >= self._bad_after_s
        fault = DeviceFault(
            health=Health.BAD if long and error.code not in _FILE_ERRORS else Health.SUSPECT,
            symptom=Symptom.HUNG if error.code is ErrorCode.TIMEOUT else Symptom.PROBE,
            detail=f"probe failed: {error.message}",
        )
        return with_faults(seen, dict.fromkeys((device.id for device in seen), fault))


class DeviceWatch:
    """Polls the probe, and finds the changes that are to be reported."""

    def __init__(self, probe: Probe, leases: LeaseSource, data: DataSource | None = None) -> None:
        self._probe = probe
        self._data = data
        self._reported_data = ReportedData()
        self._leases = leases
        self._held = HeldMemory()
        self._seen: tuple[Device, ...] = ()  #: shortened to fit into a message
        self._shortened = False  #: True once that was logged
        self._held_faults: Mapping[DeviceId, DeviceFault] = {}
        self._usage: tuple[Usage, ...] = ()
        self._reported_devices: tuple[Device, ...] | None = None  # None: not known there
        self._reported_usage: dict[DeviceId, Usage] = {}
        self._residents = ReportedResidents()

    async def poll(self) -> None:
        """Poll once. Raises the probe's AppError."""
        seen = await self._probe.devices()
        self._usage = await self._probe.usage()
        self._held_faults = self._held.faults(seen, self._usage, self._leases.leased())
        self._seen, left_out = without_excess_keys(seen)
        if left_out and not self._shortened:
            text = "%d warm keys do not fit into the report of the devices"
            logger.warning(text, left_out)
        self._shortened = left_out > 0
        self._leases.seen(seen)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices with all faults, as they are to be reported."""
        faults = {**self._held_faults, **self._leases.faults()}
        return with_faults(self._seen, faults) if faults else self._seen

    def news(self) -> Report:
        """The report of everything that changed since the last one."""
        devices = self.devices
        known = {device.id for device in devices}
        return Report(
            devices=None if devices == self._reported_devices else devices,
            usage=tuple(
                one
                for one in self._usage
                if one.device in known and self._reported_usage.get(one.device) != one
            ),
            residents=self.changed_residents(),
            held=self._changed_data(),
        )

    def changed_residents(self) -> tuple[DeviceResidents, ...]:
        """The warm workers that changed since the last report."""
        return self._residents.news(self._present_residents())

    def all_data(self) -> HeldData:
        """The declared data sets that are here, for a hello."""
        self._reported_data = ReportedData()
        return self._changed_data() or HeldData()

    def _changed_data(self) -> HeldData | None:
        if self._data is None:
            return None
        return self._reported_data.news(self._data.held(), self._data.bytes_per_s)

    def all_residents(self) -> tuple[DeviceResidents, ...]:
        """The warm workers of every device, for a hello."""
        self._residents.forget()
        return self._residents.news(self._present_residents())

    def _present_residents(self) -> Mapping[DeviceId, tuple[Resident, ...]]:
        """Those on devices that the scheduler knows from this host."""
        known = {device.id for device in self._seen}
        present = self._leases.residents()
        return {device: found for device, found in present.items() if device in known}

    def reported(self, report: Report) -> None:
        """Note that the scheduler has accepted a report."""
        if report.devices is not None:
            self._reported_devices = report.devices
        self._reported_usage.update((one.device, one) for one in report.usage)
        self._residents.reported(report.residents)
        self._reported_data.reported(report.held)

    def forget_reported(self) -> None:
        """Note that the scheduler may know nothing any more: the next report is complete."""
        self._reported_devices = None
        self._reported_usage.clear()
        self._residents.doubt()
        self._reported_data.doubt()
