"""Tables for people: every column in its place, nothing omitted silently."""

from __future__ import annotations

from typing import Any

import pytest

from corekit.errors import AppError
from corekit.ids import AttemptId, DeviceId, HostId, JobId, LeaseId, SessionId
from corekit.net.addresses import parse_address
from corekit.values import replace
from gpu_scheduler.client.commands import tables
from gpu_scheduler.floors import FloorView
from gpu_scheduler.model import (
    Device,
    DeviceKind,
    Health,
    HostState,
    Lease,
    LeaseState,
    Request,
    Resident,
    Usage,
)
from gpu_scheduler.protocol import answers
from gpu_scheduler.verdicts import DeviceVerdict, ExpectedRun, Explanation, NoFit
from tests.shares import share_of


def device(index: int, **fields: Any) -> Device:
    said: dict[str, Any] = {"kind": DeviceKind.CUDA, "model": "T4", "memory_mib": 15000, **fields}
    return Device(id=DeviceId(f"d{index}"), index=index, **said)


def inventory() -> answers.InventoryAnswer:
    views = (
        answers.DeviceView(
            device=device(0, driver="550.54", runtime="12.4"),
            memory_free_mib=5000,
            compute_free_pct=75,
            leases=(LeaseId("l1"), LeaseId("l2")),
            usage=Usage(device=DeviceId("d0"), memory_used_mib=9000, utilisation_pct=40),
            residents=(
                Resident(id="w1", workload="workload:1", memory_mib=600, loading_s=1.0),
                Resident(id="w2", workload="workload:2", memory_mib=300, loading_s=2.0),
            ),
        ),
        answers.DeviceView(
            device=device(1, health=Health.BAD, detail="Xid 79"),
            memory_free_mib=15000,
            compute_free_pct=100,
            leases=(),
            usage=None,
        ),
        answers.DeviceView(
            device=device(2),
            memory_free_mib=15000,
            compute_free_pct=100,
            leases=(LeaseId("l1"),),
            usage=None,
            drained=True,
        ),
    )
    host = answers.HostView(
        host=HostId("gpu-a"),
        state=HostState.UP,
        gateway=None,
        incarnation="1",
        silent_s=0.5,
        devices=views,
    )
    return answers.InventoryAnswer(hosts=(host,), declared=(device(9),), declared_left_out=4)


def test_warm_floors_are_listed_with_the_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    floor = FloorView(tenant="lab", workload="w", workers_min=2, workers=1, why="no room")
    tables.echo_hosts(replace(inventory(), floors=(floor,), floors_left_out=3))
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "kept warm: 1 of 2 workers of workload w (tenant lab): no room",
        "kept warm: 3 more floors",
    ]


def test_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    tables.echo_hosts(inventory())
    assert capsys.readouterr().out.splitlines() == [
        "HOST   STATE  GATEWAY  DEVICES  LEASES  LAST SEEN",
        "gpu-a  UP     none     3        2       0.5 s ago",
        "5 more devices are declared",
    ]


@pytest.mark.parametrize(
    ("state", "fields", "shown"),
    [
        (HostState.DRAINED, {}, "DRAINED"),
        (
            HostState.DRAINED,
            {"draining": answers.DrainView(reason="SIGTERM", left_s=85.0)},
            "DRAINED (SIGTERM, 1 min 25 s left)",
        ),
        (
            HostState.DRAINED,
            {"draining": answers.DrainView(reason="Auto Scaling: Standby")},
            "DRAINED (Auto Scaling: Standby)",
        ),
        (HostState.STALE, {"draining": answers.DrainView(reason="SIGTERM")}, "STALE"),
        (HostState.LOST, {"ephemeral": True, "forgotten_in_s": 50.0}, "LOST (forgotten in 50 s)"),
    ],
)
def test_a_host_that_leaves(
    state: HostState, fields: dict[str, Any], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (host,) = inventory().hosts
    tables.echo_hosts(answers.InventoryAnswer(hosts=(replace(host, state=state, **fields),)))
    assert f"gpu-a  {shown}  none" in capsys.readouterr().out


def test_devices(capsys: pytest.CaptureFixture[str]) -> None:
    tables.echo_devices(inventory())
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()[1:]] == [
        "gpu-a/0 cuda T4 OK 5000 of 15000 75 % 2 2, 900 MiB 9000 MiB, 40 % 550.54 / 12.4",
        "gpu-a/1 cuda T4 BAD 15000 of 15000 100 % 0 0 Xid 79",
        "gpu-a/2 cuda T4 DRAINED 15000 of 15000 100 % 1 0",
    ]


def test_of_a_lost_host_nothing_is_free(capsys: pytest.CaptureFixture[str]) -> None:
    found = inventory()
    lost = replace(found, hosts=(replace(found.hosts[0], state=HostState.LOST),))
    tables.echo_devices(lost)
    row = capsys.readouterr().out.splitlines()[1]
    assert " ".join(row.split()) == "gpu-a/0 cuda T4 LOST - of 15000 - 2 - 550.54 / 12.4"


@pytest.mark.parametrize("port", ["²", "port", "65536", ""])
def test_an_invalid_port_is_refused(port: str) -> None:
    with pytest.raises(AppError, match="is not an address"):
        parse_address(f"127.0.0.1:{port}")


def test_leases_end_at_a_time_or_with_their_session(capsys: pytest.CaptureFixture[str]) -> None:
    share = share_of(model="T4", memory_mib=512, compute_guarantee_pct=25, compute_limit_pct=50)
    leases = tuple(
        Lease(
            id=LeaseId(f"l{n}"),
            attempt=AttemptId(f"a{n}"),
            holder=None,
            fence=n,
            state=LeaseState.ACTIVE,
            shares=(share,),
        )
        for n in (1, 2)
    )
    found = answers.LeasesAnswer(leases=leases, ends_in_s={LeaseId("l2"): 90.0})
    where = "h/0 cuda T4 512 MiB, compute 25 to 50 %"
    tables.echo_leases(found)
    assert capsys.readouterr().out.splitlines() == [
        "LEASE  STATE   ATTEMPT  TENANT   ENDS IN           FENCE  SHARES",
        f"l1     ACTIVE  a1       default  with its session  1      {where}",
        f"l2     ACTIVE  a2       default  1 min 30 s        2      {where}",
    ]


def test_a_lease_granted_ahead_names_the_leases_before_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lease = Lease(
        id=LeaseId("l2"),
        attempt=AttemptId("a2"),
        holder=None,
        fence=2,
        state=LeaseState.RESERVED,
        shares=(share_of(model="T4"),),
        after=(LeaseId("l1"),),
    )
    tables.echo_leases(answers.LeasesAnswer(leases=(lease,), ends_in_s={}))
    assert "RESERVED, ahead of l1" in capsys.readouterr().out


def test_a_queue_counts_omitted_requests(capsys: pytest.CaptureFixture[str]) -> None:
    view = answers.QueuedView(
        attempt=AttemptId("a"),
        holder=JobId("j"),
        request=Request(count=2, memory_mib=512),
        position=None,
        waiting_since_s=0.0,
        session=SessionId("s"),
    )
    tables.echo_queue(answers.QueueAnswer(queue=(view,), left_out=7))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("ownerless  a        default  0  ")
    assert lines[1].endswith("2 × device with 512 MiB")
    assert lines[2] == "and 7 more behind them"


def test_an_explanation_lists_every_device(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = DeviceVerdict(
        host=HostId("h"),
        device=DeviceId("d"),
        index=3,
        kind=DeviceKind.CUDA,
        model="T4",
        reason=NoFit.MEMORY,
        free_mib=100,
        free_pct=50,
    )
    why = Explanation(
        devices_known=9,
        devices_fitting=0,
        counts={},
        position=1,
        largest_fit="",
        sentence="so",
        devices=(verdict,),
        devices_left_out=8,
    )
    tables.echo_explained(answers.ExplainAnswer(outcome=answers.Outcome.WAITING, explanation=why))
    assert capsys.readouterr().out.splitlines() == [
        "waiting: so",
        "DEVICE  KIND  MODEL  ANSWER  FREE MIB  COMPUTE  DETAIL",
        "h/3     cuda  T4     MEMORY  100       50 %",
        "and 8 more devices",
    ]


def test_workloads(capsys: pytest.CaptureFixture[str]) -> None:
    seen = ExpectedRun(
        model="T4",
        runs=12,
        execution_p50_s=4.0,
        execution_p95_s=6.0,
        loading_p50_s=None,
        loading_p95_s=None,
    )
    view = answers.WorkloadView(
        id="workload:1/T4",
        tenant="t",
        workload="ocr",
        expected=seen,
        cold_starts=0,
        warm_starts=12,
        residents=1,
    )
    tables.echo_workloads(answers.WorkloadsAnswer(workloads=(view,)))
    head, row = capsys.readouterr().out.splitlines()
    assert head.startswith("TENANT  WORKLOAD  MODEL  RUNS  EXECUTION 50/95 %  LOADING 50/95 %")
    assert " ".join(row.split()) == "t ocr T4 12 4 s, 6 s - 0 cold, 12 warm 1"
    tables.echo_workloads(answers.WorkloadsAnswer(workloads=()))
    assert capsys.readouterr().out == "no times were learned yet\n"
