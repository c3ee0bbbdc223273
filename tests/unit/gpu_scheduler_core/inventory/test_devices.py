"""The feasibility function, case by case, and the shares of a request."""

from typing import Any

import pytest

from corekit.ids import DeviceId
from gpu_scheduler.core.inventory.devices import DeviceState, fits, is_feasible, share_of
from gpu_scheduler.model import Device, DeviceKind, Health, HostState, Request, Sharing
from gpu_scheduler.verdicts import NoFit
from tests.scheduler_world import idle_state

DEVICE = Device(id=DeviceId("d"), index=0, kind=DeviceKind.CUDA, model="A100", memory_mib=1000)
EMPTY = idle_state(DEVICE)
WHOLE = Request(sharing=Sharing.EXCLUSIVE)


def made(**fields: Any) -> DeviceState:
    """The state of an empty device whose class differs in these fields."""
    return EMPTY._replace(device_class=EMPTY.device_class._replace(**fields))


@pytest.mark.parametrize(
    ("request_", "device_state", "reason"),
    [
        (Request(), EMPTY, None),
        (Request(memory_mib=1000, compute_guarantee_pct=100), EMPTY, None),
        (Request(kinds=(DeviceKind.CPU,)), EMPTY, NoFit.KIND),
        (Request(kinds=(DeviceKind.CPU, DeviceKind.CUDA)), EMPTY, None),
        (Request(models=("H100",)), EMPTY, NoFit.MODEL),
        (Request(memory_mib=1001), EMPTY, NoFit.MEMORY),
        (Request(memory_max_mib=999), EMPTY, NoFit.TOO_LARGE),
        (Request(memory_max_mib=1000, memory_mib=1000), EMPTY, None),
        (Request(memory_mib=501), EMPTY._replace(free_mib=500, shared=True), NoFit.MEMORY),
        (Request(memory_mib=500), EMPTY._replace(free_mib=500, shared=True), None),
        (Request(compute_guarantee_pct=51), EMPTY._replace(free_permille=500), NoFit.COMPUTE),
        (Request(compute_guarantee_pct=50), EMPTY._replace(free_permille=500), None),
        (Request(compute_guarantee_pct=12.5), EMPTY._replace(free_permille=125), None),
        (Request(compute_guarantee_pct=12.6), EMPTY._replace(free_permille=125), NoFit.COMPUTE),
        (Request(), EMPTY._replace(exclusive=True), NoFit.EXCLUSIVE_TAKEN),
        (WHOLE, EMPTY._replace(exclusive=True), NoFit.EXCLUSIVE_TAKEN),
        (WHOLE, EMPTY._replace(shared=True), NoFit.SHARED_TAKEN),
        (WHOLE, EMPTY, None),
        (Request(), EMPTY._replace(host_state=HostState.STALE), NoFit.HOST_STALE),
        (Request(), EMPTY._replace(host_state=HostState.LOST), NoFit.HOST_LOST),
        (Request(), EMPTY._replace(host_state=HostState.DRAINED), NoFit.DRAINED),
        (Request(), EMPTY._replace(health=Health.SUSPECT), NoFit.SUSPECT),
        (Request(), EMPTY._replace(health=Health.BAD), NoFit.BAD),
        (Request(min_driver="550.9"), made(driver=(550, 54, 15)), None),
        (Request(min_driver="550.54.15"), made(driver=(550, 9)), NoFit.DRIVER),
        (Request(min_driver="1"), EMPTY, NoFit.DRIVER),
        (Request(min_runtime="12.0"), made(runtime=(12,)), None),
        (Request(min_runtime="12.1"), made(runtime=(12,)), NoFit.RUNTIME),
        (Request(), made(gateway=False), NoFit.ADVISORY),
        (Request(advisory=True), made(gateway=False), None),
        (Request(middleware="rcuda"), made(middlewares=("builtin",)), NoFit.MIDDLEWARE),
        (Request(middleware="rcuda"), made(middlewares=("builtin", "rcuda")), None),
        (Request(middleware="rcuda"), made(middlewares=None), None),  # declared only
        (Request(), EMPTY._replace(reserved_for="other"), NoFit.RESERVED_FOR_HEAD),
        (Request(), EMPTY._replace(reserved_for="me"), None),
        # what can never be cured is said first
        (Request(memory_mib=1001), EMPTY._replace(host_state=HostState.LOST), NoFit.MEMORY),
    ],
)
def test_reasons(request_: Request, device_state: DeviceState, reason: NoFit | None) -> None:
    assert fits(request_, device_state, "me") is reason


def test_permanent_feasibility_ignores_temporary_reasons() -> None:
    bad_day = EMPTY._replace(
        host_state=HostState.LOST, health=Health.BAD, free_mib=0, free_permille=0, exclusive=True
    )
    assert is_feasible(Request(memory_mib=1000), bad_day.device_class)
    assert not is_feasible(Request(memory_mib=1001), bad_day.device_class)


def test_an_exclusive_share_is_the_whole_device() -> None:
    request = Request(sharing=Sharing.EXCLUSIVE, memory_mib=10, compute_limit_pct=30)
    share = share_of(request, DEVICE, "h")
    assert (share.memory_mib, share.compute_guarantee_pct, share.compute_limit_pct) == (
        1000,
        100,
        100,
    )


def test_a_shared_share_is_the_requested_part() -> None:
    request = Request(memory_mib=10, compute_guarantee_pct=5, compute_limit_pct=30)
    share = share_of(request, DEVICE, "h")
    assert (share.memory_mib, share.compute_guarantee_pct, share.compute_limit_pct) == (10, 5, 30)
    assert not share.exclusive
