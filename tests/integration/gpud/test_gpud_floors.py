"""Workers of a real gpud that load without a lease, because a floor asks for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.floors import HostFloor
from gpu_scheduler.protocol.host import WarmLimits
from tests.integration.gpud.conftest import OPERATIONS, Gpud, running_gpud, until
from tests.integration.gpud.test_gpud_loads_ahead import (
    emulated,
    lane,
    lease,
    run,
    share,
)
from tests.integration.gpud.test_gpud_warm import loading_s, residents


@pytest.fixture(scope="module")
def gpud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpud]:
    folder: Path = tmp_path_factory.mktemp("floors")
    with running_gpud(folder, *emulated(folder), operations=OPERATIONS) as found:
        yield found


def floor_of(workload: str, operation: str) -> HostFloor:
    loads = ((operation, "{}"),)
    return HostFloor(tenant="t", workload=workload, share=share(), workers_min=1, loads=loads)


def test_a_floor_is_loaded_before_the_first_job_and_again_after_an_eviction(gpud: Gpud) -> None:
    gpud.scheduler.limit(WarmLimits(idle_s_max=1.0))
    gpud.scheduler.keep_warm(floor_of("w", "detect"))
    until(lambda: residents(gpud))
    (loaded,) = residents(gpud)
    assert loaded.startswith("floor-")
    first = lease(gpud, "w")
    assert run(gpud, first) == 0
    assert loading_s(gpud, first) == [0.0]
    until(lambda: residents(gpud))
    with lane(gpud, lease(gpud, "large", 900)) as device:
        until(lambda: not residents(gpud))
        device.op("detect", b"x")
    until(lambda: [name for name in residents(gpud) if name.startswith("floor-")])
    (again,) = [name for name in residents(gpud) if name.startswith("floor-")]
    over_s = time.monotonic() + 2.5  # when gpud evicts others
    until(lambda: time.monotonic() > over_s)
    assert again in residents(gpud), "the limits do not count for it"
    gpud.scheduler.keep_warm()
    until(lambda: not residents(gpud))  # its time without a lease is over


def test_what_a_floor_cannot_load_is_tried_again_with_pauses(gpud: Gpud) -> None:
    gpud.scheduler.keep_warm(floor_of("v", "nothing"))
    until(lambda: gpud.logged("a load ahead of a lease has ended without a worker"))
    assert residents(gpud) == {}
    gpud.scheduler.keep_warm()
