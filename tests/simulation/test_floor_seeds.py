"""Seeds whose hosts keep warm workers without a lease; a failure names the seed to replay.

`python -m simulator.faults` draws floors for most of its seeds; here every seed has some.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from corekit.values import replace
from gpu_scheduler.core.handlers import floors
from gpu_scheduler.core.inventory.floors import Floors
from gpu_scheduler.core.placement import eviction
from gpu_scheduler.core.transaction import Transaction
from gpu_scheduler.parameters import EVERYBODY, Parameters, Quota
from gpu_scheduler.protocol.host import KeepWarmPush
from simulator.faults.checkers import Violation
from simulator.faults.scenario import FAULTS, Fault, Scenario, draw
from simulator.faults.seeds import simulate
from tests.simulation.test_seeds import seeds

#: Two functions with floors, for which one host has not enough memory; workers go for leases, and
#: come again in the pauses between the jobs.
CALM = Scenario(jobs=8, urgent_jobs=4, upload_pause_s_max=20.0, work_s_max=5.0, warm_min=2)
ONE_HOST = replace(CALM, hosts=1)
QUOTA = replace(CALM, parameters=Parameters(quotas={EVERYBODY: Quota(devices=2)}))


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")


@seeds(60, always=1)
def test_every_invariant_holds_with_floors(seed: int) -> None:
    verdict = simulate(seed, replace(draw(seed), warm_min=1 + seed % 3))
    assert sum(verdict.outcomes.values()) == verdict.jobs
    assert verdict.floors["declared"] > 0


@pytest.mark.parametrize("kind", FAULTS)
def test_floors_are_met_again_after_one_fault(kind: str) -> None:
    faults = tuple(Fault(kind=kind, at_s=5.0 * n, target=0, lasts_s=30.0) for n in range(1, 3))
    verdict = simulate(3, replace(CALM, faults=faults))
    assert verdict.outcomes == {"SUCCEEDED": 12}
    assert verdict.floors["workers"] >= 4


def _none(*_: Any) -> None:
    return None


def _keep_for_ever(self: Floors, session: Any, found: Any, refused: Any = ()) -> bool:
    return bool(found) and DECLARE(self, session, found, refused)


def _never_end(self: Transaction, host: Any, push: Any) -> None:
    if not isinstance(push, KeepWarmPush) or push.floors:
        PUSH(self, host, push)


def _keep_slots(tx: Transaction, wanted: Any) -> Any:
    slots, resumes_at = PLACED(tx, wanted)
    return {**tx.state.floors.slots, **slots}, resumes_at


DECLARE, PLACED, PUSH = Floors.declare, floors._placed, Transaction.push_to_host


@pytest.mark.parametrize(
    ("scenario", "place", "name", "decision", "found"),
    [
        (
            ONE_HOST,
            floors._Books,
            "placed",
            _none,
            r"warm floors after 60 s: \['work has 0 workers of 2",
        ),
        (ONE_HOST, floors, "_misfit", _none, "are to be loaded beside leases"),
        (ONE_HOST, eviction, "_cheapest_first", lambda *_: (), "workers keep"),
        (QUOTA, floors, "_workers_max", lambda *_: 9, "workers of floors, of at most 2"),
        (ONE_HOST, floors, "_placed", _keep_slots, "the slots of .* outlive the last session"),
        (ONE_HOST, Floors, "declare", _keep_for_ever, "the floors of replica-1 outlive it"),
        (
            ONE_HOST,
            Transaction,
            "push_to_host",
            _never_end,
            r"warm floors after 60 s: \['host-0 keeps",
        ),
    ],
)
def test_a_broken_decision_is_noticed(
    scenario: Scenario,
    place: object,
    name: str,
    decision: Callable[..., Any],
    found: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(place, name, decision)
    with pytest.raises(Violation, match=found):
        simulate(3, scenario)
