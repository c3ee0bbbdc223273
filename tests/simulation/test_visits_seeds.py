"""Seeds of the system whose orchestrator is functions: a tenth of its visits are killed.

A failure names the seed to replay.
"""

from __future__ import annotations

import pytest

from simulator.faults.scenario import Scenario
from simulator.faults.seeds import simulate
from simulator.faults.visits import VisitingWorld, visiting
from tests.simulation.test_seeds import seeds


@seeds(100, always=4)
def test_every_invariant_holds(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    verdict = simulate(seed, visiting(seed), kind=VisitingWorld)
    assert sum(verdict.outcomes.values()) == verdict.jobs


def test_jobs_with_and_without_devices_succeed(caplog: pytest.LogCaptureFixture) -> None:
    """More jobs than devices: most of them wait while no orchestrator lives."""
    caplog.set_level("CRITICAL")
    calm = Scenario(jobs=12, plain_jobs=4, upload_pause_s_max=0.1)
    verdict = simulate(1, calm, kind=VisitingWorld)
    assert verdict.outcomes == {"SUCCEEDED": 16}
