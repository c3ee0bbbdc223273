"""Seeds of worlds whose hosts come from a fleet; a failure names the seed to replay.

`python -m simulator.faults` draws a fleet for a quarter of its seeds; here every seed has one.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from corekit.values import replace
from gpu_scheduler.model import DeviceKind
from orchgpu.fleet import program
from orchgpu.fleet.core.model import Offer, Offers, Rules, View
from orchgpu.fleet.ports.memory import MemoryFleet
from orchgpu.fleet.program import Fleet, view_of
from simulator.faults.checkers import Violation
from simulator.faults.fleet_scenario import FLEET_FAULTS, FleetScenario
from simulator.faults.scenario import Fault, Scenario, draw, with_fleet
from simulator.faults.seeds import simulate
from simulator.faults.services import Verdict


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")


def run_seed(seed: int) -> Verdict:
    scenario = with_fleet(draw(seed), random.Random(f"{seed}/fleet of a test"))
    return simulate(seed, replace(scenario, hosts=0))


@pytest.mark.parametrize("seed", range(1, 5))
def test_every_invariant_holds_with_a_fleet(seed: int) -> None:
    verdict = run_seed(seed)
    assert sum(verdict.outcomes.values()) == verdict.jobs
    assert verdict.machines["launched"] > 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_hundred_seeds_with_a_fleet() -> None:
    for seed in range(5, 200):
        run_seed(seed)


OFFER = Offer(
    name="pool", kind=DeviceKind.CPU, model="sim", memory_mib=1024, max=2, idle_s=5.0, start_s=5.0
)
OFFERS = Offers(offers=(OFFER,), rules=Rules(target_wait_s=0.0, patience_s=0.0))
EDITS = ((replace(OFFER, group="moved"),), (replace(OFFER, max=1),), ())
CALM = Scenario(
    jobs=8,
    hosts=0,
    exclusive=True,
    upload_pause_s_max=2.0,
    fleet=FleetScenario(offers=OFFERS, edits=EDITS),
)


@pytest.mark.parametrize("kind", [*FLEET_FAULTS, "kill scheduler"])
def test_one_fault_loses_no_job_and_leaves_no_host(kind: str) -> None:
    faults = tuple(Fault(kind=kind, at_s=6.0 * n, target=n, lasts_s=20.0) for n in range(1, 4))
    verdict = simulate(3, replace(CALM, faults=faults))
    assert verdict.outcomes == {"SUCCEEDED": 8}


def test_attempts_that_a_notice_ends_do_not_count() -> None:
    """More notices than a job has attempts, while the jobs run."""
    faults = tuple(
        Fault(kind="spot notice", at_s=5.0 + 4.0 * n, target=n, lasts_s=0.0) for n in range(60)
    )
    verdict = simulate(1, replace(CALM, jobs=3, work_s_max=60.0, faults=faults))
    assert verdict.outcomes == {"SUCCEEDED": 3}
    assert verdict.preempted > 3


def test_hosts_that_are_lost_for_ever_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stop(self: MemoryFleet, group: str, host: str) -> None:
        """Forget the host, and let it run."""

    monkeypatch.setattr(MemoryFleet, "stop", stop)
    with pytest.raises(Violation, match="without demand"):
        simulate(3, CALM)


def test_a_fleet_that_ends_hosts_with_leases_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def idle(*given: Any) -> View:
        view = await view_of(*given)
        return replace(view, hosts=tuple(replace(host, leases=0) for host in view.hosts))

    monkeypatch.setattr(program, "view_of", idle)
    with pytest.raises(Violation, match="is stopped by a fleet with the leases"):
        simulate(3, replace(CALM, work_s_max=60.0))


def test_a_fleet_that_orders_more_than_its_offer_has_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offers_in_force = Fleet._reread_offers

    async def reread(self: Fleet) -> None:
        await offers_in_force(self)
        more = tuple(replace(one, max=9) for one in self._offers.offers)
        self._offers = replace(self._offers, offers=more)

    monkeypatch.setattr(Fleet, "_reread_offers", reread)
    with pytest.raises(Violation, match="is to have"):
        simulate(3, CALM)
