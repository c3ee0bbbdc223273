"""Lambda's failure records of attempts without a device: which start failed decides."""

from __future__ import annotations

import json
import random

import pytest

from contract.claim import Claim
from contract.keys import claim_key, staging_key
from contract.states import Reason
from corekit.aio.clock import LoopClock
from corekit.aio.vloop import run_virtual
from corekit.budget import Budget
from corekit.values import replace
from gpu_scheduler.model import Request
from gpu_scheduler.parameters import Parameters
from local_cloud.model.cloud import Cloud
from local_cloud.model.s3.body import MemoryBodies
from orchgpu.core import actions as do
from orchgpu.core.completion import read_completion
from orchgpu.replica.actions.function_failures import FunctionFailures
from orchgpu.replica.actions.objects import read_claim, read_report
from simulator.faults.checkers import Checker
from simulator.faults.memory_cloud import MemoryStore
from simulator.faults.requester import SimRequester
from simulator.faults.scheduler import SimScheduler
from simulator.faults.tenant_usage import TenantUsage
from tests.unit.orchgpu.jobs import FUNCTION, JOB, NOW

WITHOUT = replace(FUNCTION, request=Request(count=0))


def failure(request: str) -> do.RecordFunctionFailure:
    return do.RecordFunctionFailure(
        job=JOB,
        function=WITHOUT,
        attempt=1,
        reason=Reason.FUNCTION_CRASHED,
        detail="it died",
        request=request,
        with_device=False,
    )


@pytest.mark.parametrize(
    ("claimed_by", "failed", "stored"),
    [
        ("start-1", "start-1", True),
        ("start-1", "start-2", False),  # a duplicate delivery failed, the first one runs
        (None, "start-1", True),  # it never came to its claim
        ("", "start-1", True),  # it was closed before
    ],
)
def test_only_the_start_that_has_the_attempt_can_fail_it(
    claimed_by: str | None, failed: str, stored: bool
) -> None:
    async def main() -> None:
        bodies, clock = MemoryBodies(), LoopClock()
        cloud = Cloud(bodies=bodies)
        cloud.create_bucket(clock.wall_s(), "mid")
        store = MemoryStore(cloud, bodies, clock)
        checker = Checker(TenantUsage())
        scheduler = SimScheduler(Budget(), clock, checker, "failures", Parameters())
        scheduler.start()
        requester = SimRequester(
            scheduler, "me", Budget(), random.Random(1), delay_s_max=0.001, loss_rate=0.0
        )
        if claimed_by is not None:
            one = Claim(job_id=JOB, attempt=1, request=claimed_by, claimed_at_s=1.0, ends_at_s=2.0)
            await store.put("mid", claim_key(JOB, 1), one.to_json())
        failures = FunctionFailures(store, requester, clock, Budget())
        await failures.record(failure(failed))
        assert (await read_report(store, "mid", JOB, 1) is not None) is stored
        standing = await read_claim(store, "mid", JOB, 1)
        assert standing is not None, "no later start runs it"
        assert standing.request == (claimed_by or "")

    run_virtual(main())


@pytest.mark.parametrize(("fence", "with_device"), [(0, False), (9, True)])
def test_the_envelope_shows_whether_the_attempt_has_a_device(fence: int, with_device: bool) -> None:
    records = [{"s3": {"object": {"key": staging_key("search", JOB, 2, fence)}}}]
    (notice,) = read_completion(json.dumps({"requestPayload": {"Records": records}}), FUNCTION, NOW)
    assert isinstance(notice, do.RecordFunctionFailure)
    assert notice.with_device is with_device
