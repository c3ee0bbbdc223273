"""Devices of a host while its probe fails, and the changes that are reported."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.aio.vloop import run_virtual
from corekit.errors import AppError, ErrorCode
from corekit.ids import DeviceId
from gpu_scheduler.model import (
    Device,
    DeviceKind,
    DeviceResidents,
    Health,
    Resident,
    Symptom,
    Usage,
)
from gpu_scheduler.monitor.device_report import ReportedResidents
from gpu_scheduler.monitor.health import DeviceFault
from gpu_scheduler.monitor.watch import DeviceWatch, LastSeen
from gpu_scheduler.protocol.host import Report

A, B = DeviceId("a"), DeviceId("b")


def device(name: DeviceId, index: int) -> Device:
    return Device(id=name, index=index, kind=DeviceKind.CUDA, model="m", memory_mib=1000)


def usage(name: DeviceId, used_mib: int) -> Usage:
    return Usage(device=name, memory_used_mib=used_mib, utilisation_pct=0, processes=1)


class Source:
    """A probe that returns the given devices or raises the given error."""

    def __init__(self) -> None:
        self.shown: tuple[Device, ...] | AppError = (device(A, 0), device(B, 1))
        self.figures: tuple[Usage, ...] = (usage(A, 1), usage(B, 1))

    async def devices(self) -> tuple[Device, ...]:
        if isinstance(self.shown, AppError):
            raise self.shown
        return self.shown

    async def usage(self) -> tuple[Usage, ...]:
        return self.figures

    async def close(self) -> None:
        """Do nothing: no resource is held."""


class Lender:
    """Leases of a host, and faults that its program found."""

    def __init__(self) -> None:
        self.known: dict[DeviceId, DeviceFault] = {}
        self.lent: tuple[Device, ...] = ()
        self.warm: dict[DeviceId, tuple[Resident, ...]] = {}

    def seen(self, devices: tuple[Device, ...]) -> None:
        self.lent = devices

    def leased(self) -> Collection[DeviceId]:
        return ()

    def faults(self) -> Mapping[DeviceId, DeviceFault]:
        return self.known

    def residents(self) -> Mapping[DeviceId, tuple[Resident, ...]]:
        return self.warm


def healths(devices: tuple[Device, ...]) -> list[tuple[Health, tuple[Symptom, ...]]]:
    return [(one.health, one.symptoms) for one in devices]


@pytest.mark.parametrize(
    ("code", "symptom", "at_last"),
    [
        (ErrorCode.TIMEOUT, Symptom.HUNG, Health.BAD),
        (ErrorCode.UNAVAILABLE, Symptom.PROBE, Health.BAD),
        (ErrorCode.INVALID, Symptom.PROBE, Health.SUSPECT),
        (ErrorCode.NOT_FOUND, Symptom.PROBE, Health.SUSPECT),
    ],
)
def test_a_failing_probe_is_suspect_first(
    code: ErrorCode, symptom: Symptom, at_last: Health
) -> None:
    async def fail() -> None:
        source = Source()
        probe = LastSeen(source, bad_after_s=20.0)
        seen = await probe.devices()
        source.shown = AppError(code, "it fails")
        assert healths(await probe.devices()) == [(Health.SUSPECT, (symptom,))] * 2
        assert await probe.usage() == ()
        await asyncio.sleep(19.0)
        assert healths(await probe.devices()) == [(Health.SUSPECT, (symptom,))] * 2
        await asyncio.sleep(1.0)
        assert healths(await probe.devices()) == [(at_last, (symptom,))] * 2
        source.shown = seen
        assert await probe.devices() == seen, "it answers again"
        source.shown = AppError(code, "it fails again")
        assert healths(await probe.devices()) == [(Health.SUSPECT, (symptom,))] * 2

    run_virtual(fail())


def test_a_probe_that_never_succeeded_raises_its_error() -> None:
    source = Source()
    source.shown = AppError(ErrorCode.UNAVAILABLE, "no driver")
    with pytest.raises(AppError, match="no driver"):
        run_virtual(LastSeen(source, 20.0).devices())


def test_only_changes_are_reported() -> None:
    async def watch() -> None:
        source, lender = Source(), Lender()
        watch = DeviceWatch(source, lender)
        await watch.poll()
        news = watch.news()
        assert news.devices == watch.devices == lender.lent
        assert news.usage == source.figures
        assert watch.news() == news, "until it is told"
        watch.reported(news)
        news = watch.news()
        assert (news.devices, news.usage) == (None, ())
        source.figures = (usage(A, 1), usage(B, 2))
        await watch.poll()
        news = watch.news()
        assert (news.devices, news.usage) == (None, (usage(B, 2),))
        watch.forget_reported()
        assert watch.news().devices == watch.devices

    run_virtual(watch())


def test_faults_of_the_program_are_reported_without_a_poll() -> None:
    async def watch() -> None:
        source, lender = Source(), Lender()
        watch = DeviceWatch(source, lender)
        await watch.poll()
        watch.reported(watch.news())
        lender.known = {
            A: DeviceFault(health=Health.SUSPECT, symptom=Symptom.HUNG, detail="process 7")
        }
        news = watch.news()
        assert news.devices is not None
        assert healths(news.devices) == [(Health.SUSPECT, (Symptom.HUNG,)), (Health.OK, ())]
        watch.reported(news)
        lender.known = {}
        news = watch.news()
        assert news.devices is not None
        assert healths(news.devices) == [(Health.OK, ())] * 2

    run_virtual(watch())


def resident(name: str, memory_mib: int = 1) -> Resident:
    return Resident(id=name, workload="workload:k", memory_mib=memory_mib, loading_s=1.0)


def known_after(changes: tuple[DeviceResidents, ...], known: dict[str, Resident]) -> None:
    """Apply a report as the scheduler does."""
    for change in changes:
        known |= {one.id: one for one in change.added}
        for name in change.removed:
            known.pop(name, None)


def test_residents_are_reported_as_differences() -> None:
    async def play() -> None:
        source, lender = Source(), Lender()
        watch = DeviceWatch(source, lender)
        await watch.poll()
        lender.warm = {A: (resident("a"), resident("b"))}
        assert watch.all_residents() == (
            DeviceResidents(device=A, added=(resident("a"), resident("b"))),
        )
        watch.reported(Report(residents=watch.all_residents()))
        assert watch.news().residents == ()
        lender.warm = {A: (resident("b"),), B: (resident("c"),)}
        news = watch.news()
        assert news.residents == (
            DeviceResidents(device=A, removed=("a",)),
            DeviceResidents(device=B, added=(resident("c"),)),
        )
        watch.reported(news)
        source.shown = (device(A, 0),)
        await watch.poll()
        assert watch.news().residents == (DeviceResidents(device=B, removed=("c",)),)

    run_virtual(play())


@given(
    st.lists(
        st.tuples(
            st.frozensets(st.integers(0, 4)),
            st.sampled_from(["accepted", "lost", "accepted, but not acknowledged", "hello"]),
        ),
        max_size=20,
    )
)
def test_the_scheduler_knows_the_residents_after_every_accepted_report(
    steps: list[tuple[frozenset[int], str]],
) -> None:
    reports, known = ReportedResidents(), dict[str, Resident]()
    for numbers, fate in steps:
        present = {A: tuple(resident(f"w{n}") for n in sorted(numbers))}
        if fate == "hello":
            reports.forget()
            known.clear()
        changes = reports.news(present)
        if fate != "lost":
            known_after(changes, known)
        if fate in ("accepted", "hello"):
            reports.reported(changes)
            assert sorted(known) == sorted(one.id for one in present[A])
        else:
            reports.doubt()
