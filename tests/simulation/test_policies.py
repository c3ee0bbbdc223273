"""One workload under every policy: bounds and quotas hold, and each policy has its effect."""

from __future__ import annotations

import json

from click.testing import CliRunner

from gpu_scheduler.model import Request
from gpu_scheduler.parameters import Parameters, Quota
from gpu_scheduler.policy_registry import installed_policies
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.changes import Entry
from simulator.faults.tenant_usage import TenantUsage
from simulator.policies import main, run_policy, workload
from simulator.pool import Pool
from tests.scheduler_events import event_of

REQUESTS, DEVICES = 150, 8


def test_each_policy_has_its_effect() -> None:
    arrivals = workload(3, REQUESTS, DEVICES)
    fifo, backfill, fair = (
        run_policy(arrivals, DEVICES, Parameters(policy=policy, bypass_max=4))
        for policy in ("fifo", "backfill", "fair")
    )
    assert fifo.requests == backfill.requests == fair.requests == REQUESTS
    assert backfill.wait_mean_s < fifo.wait_mean_s
    assert fair.tenants_wait_mean_s["rare"] < fifo.tenants_wait_mean_s["rare"] / 2


def test_a_quota_keeps_room_for_the_others() -> None:
    arrivals = workload(3, REQUESTS, DEVICES)
    free = run_policy(arrivals, DEVICES, Parameters())
    held = run_policy(arrivals, DEVICES, Parameters(quotas={"flood": Quota(devices=3)}))
    assert held.tenants_wait_mean_s["rare"] < free.tenants_wait_mean_s["rare"]
    assert held.tenants_wait_mean_s["flood"] > free.tenants_wait_mean_s["flood"]


def test_a_grant_beyond_a_quota_is_reported() -> None:
    pool = Pool(1, Parameters())
    books = TenantUsage(Parameters(quotas={"t": Quota(memory_mib=150, devices=2)}))
    entries: list[Entry] = []
    for number in range(2):
        event = event_of(
            ops.Reserve,
            at_s=0.0,
            wall_s=0.0,
            attempt=str(number),
            request=Request(memory_mib=100, tenant="t"),
            wait=True,
        )
        entries += pool.machine.handle(event).changes
    told = [broken for entry in entries for broken in books.note(entry)]
    assert told == ["tenant t was granted 200 memory_mib of 150"]


def test_the_command_compares_the_policies() -> None:
    done = CliRunner().invoke(main, ["--requests", "20", "--devices", "2", "--json"])
    assert done.exit_code == 0, done.output
    policies = json.loads(done.output)["policies"]
    assert [policy["policy"] for policy in policies] == list(installed_policies())
    table = CliRunner().invoke(main, ["--requests", "20", "--devices", "2", "--quota", "1"])
    assert table.output.splitlines()[0].startswith("policy")
