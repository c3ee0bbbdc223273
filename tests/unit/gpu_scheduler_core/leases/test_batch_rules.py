"""Rules of batches: from a request to the hosts of its lease, now and after a restart."""

from typing import Any

import pytest

from corekit.errors import AppError
from gpu_scheduler.model import Batch, Request
from gpu_scheduler.protocol import host as host_ops
from tests.scheduler_world import World, device

RULES = Batch(joins=True, wait_ms=7.5, size_max=16)


def test_the_host_of_a_lease_gets_its_rules_and_has_them_after_a_restart(world: World) -> None:
    world.host("h", device("d"))
    for attempt, rules in (("a", RULES), ("b", None)):
        world.reserve(attempt, Request(memory_mib=100, workload="w", batch=rules))
        assert [push.install.batch for push in world.pushed(host_ops.InstallPush)] == [rules]
    world.start()
    welcome = world.host("h", device("d"), incarnation="two")
    assert [install.batch for install in welcome.installs] == [RULES, None]


@pytest.mark.parametrize(
    "values", [{"wait_ms": -1.0}, {"wait_ms": 1e9}, {"size_max": 0}, {"size_max": 10**6}]
)
def test_rules_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(AppError):
        Request(batch=Batch(joins=True, **values))
