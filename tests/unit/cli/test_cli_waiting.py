"""The reason that a job waits: of the closed set, with blocking leases; pauses."""

from __future__ import annotations

from typing import Any

import pytest

from contract.states import Reason
from corekit.ids import AttemptId, DeviceId, HostId, JobId, LeaseId
from corekit.values import replace
from gpu_scheduler.model import DeviceKind, Lease, LeaseState, Record, Step
from gpu_scheduler.protocol.answers import LeasesAnswer
from gpu_scheduler.verdicts import DeviceVerdict, Explanation, HeldBack, NoFit
from orchgpu.jobs.waiting import blocking_leases, pause_sentence, reason_of_wait, wait_sentence
from tests.history_records import share


def verdict(device: str, reason: NoFit) -> DeviceVerdict:
    return DeviceVerdict(
        host=HostId("gpu-a"),
        device=DeviceId(device),
        index=0,
        kind=DeviceKind.CPU,
        model="x",
        reason=reason,
        free_mib=0,
        free_pct=0,
    )


def explanation(**fields: Any) -> Explanation:
    given: dict[str, Any] = {
        "devices_known": 2,
        "devices_fitting": 0,
        "counts": {NoFit.MEMORY.value: 2},
        "position": 1,
        "largest_fit": "",
        "sentence": "number 1 in the queue",
        "devices": (verdict("d1", NoFit.MEMORY), verdict("d2", NoFit.KIND)),
    }
    return Explanation(**{**given, **fields})


def lease(name: str, device: str) -> Lease:
    return Lease(
        id=LeaseId(name),
        attempt=AttemptId(f"j-{name}:1"),
        holder=JobId(f"j-{name}"),
        fence=1,
        state=LeaseState.ACTIVE,
        shares=(share(device, "gpu-a", memory_mib=512, compute_guarantee_pct=50),),
    )


LIVE = LeasesAnswer(
    leases=(
        lease("a", "d1"),
        lease("b", "d1"),
        lease("c", "d2"),
        replace(lease("d", "d1"), after=(LeaseId("a"),)),  # waits for the device itself
    ),
    ends_in_s={LeaseId("b"): 40.0},
)


def test_the_leases_of_devices_that_are_short_are_in_the_way_the_soonest_first() -> None:
    found = blocking_leases(explanation(), LIVE)
    assert [(one.lease, one.ends_in_s) for one in found] == [("b", 40.0), ("a", None)]
    said = wait_sentence(explanation(), found)
    assert said.startswith("number 1 in the queue. Blocked by b of j-b:1 on gpu-a/0 (512 MiB")
    assert "ends in 40 s at the latest" in said
    assert wait_sentence(explanation(), []) == "number 1 in the queue"
    many = [replace(one, lease=f"{one.lease}{n}") for n in range(3) for one in found]
    assert wait_sentence(explanation(), many).endswith("; and 3 more")
    two = [found[0], replace(found[0], index=1)]
    told = (
        "b of j-b:1 on gpu-a/0 (512 MiB, 50 %), gpu-a/1 (512 MiB, 50 %), ends in 40 s at the latest"
    )
    assert wait_sentence(explanation(), two).endswith(f"Blocked by {told}")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, Reason.BUSY),
        ({"position": 2}, Reason.QUEUED_BEHIND),
        ({"after": (LeaseId("a"),), "position": None}, Reason.AHEAD),
        ({"devices_fitting": 1}, Reason.QUEUED_BEHIND),
        ({"pool": "a10g", "held_back": HeldBack.OUT_OF_SERVICE}, Reason.HOST_STARTS),
        ({"counts": {NoFit.HOST_LOST.value: 2}}, Reason.HOST_UNREACHABLE),
        ({"counts": {NoFit.HOST_LOST.value: 1, NoFit.MEMORY.value: 1}}, Reason.BUSY),
        ({"counts": {"SOMETHING_NEWER": 1}}, Reason.BUSY),
        ({"held_back": HeldBack.QUOTA}, Reason.QUOTA),
        ({"held_back": HeldBack.QUOTA, "devices_fitting": 1, "position": 7}, Reason.QUOTA),
        ({"held_back": HeldBack.POLICY, "devices_fitting": 1}, Reason.HELD_BY_POLICY),
        ({"held_back": HeldBack.LEASES_MAX, "devices_fitting": 1}, Reason.SCHEDULER_FULL),
        ({"held_back": HeldBack.JOURNAL_FULL, "devices_fitting": 1}, Reason.SCHEDULER_FULL),
        ({"held_back": HeldBack.OUT_OF_SERVICE, "counts": {"DRAINED": 1}}, Reason.OUT_OF_SERVICE),
        (
            {"held_back": HeldBack.OUT_OF_SERVICE, "counts": {"DRAINED": 1, "HOST_LOST": 1}},
            Reason.OUT_OF_SERVICE,
        ),
        (
            {"held_back": HeldBack.OUT_OF_SERVICE, "counts": {"HOST_LOST": 1, "MEMORY": 1}},
            Reason.HOST_UNREACHABLE,
        ),
        ({"held_back": HeldBack.OUT_OF_SERVICE, "counts": {}}, Reason.OUT_OF_SERVICE),
    ],
)
def test_a_wait_has_a_reason_of_the_closed_set(fields: dict[str, Any], reason: Reason) -> None:
    assert reason_of_wait(explanation(**fields)) is reason


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ""),
        (
            {"times": {"RETRY_AT": 107.0}, "reason": "KILLED"},
            "attempt 1 failed (KILLED); the next one is due in 7 s",
        ),
        ({"owner": None}, "its message is delivered again"),
        ({"owner": None, "step": Step.RUNNING}, "its function continues"),
        ({"step": Step.STAGED}, "has not opened a session"),
        ({"step": Step.ENDED, "owner": None}, ""),
    ],
)
def test_every_other_pause_has_its_reason(fields: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {
        "holder": JobId("j1"),
        "revision": 1,
        "owner": "o",
        "attempt": 1,
        "step": Step.RECEIVED,
        "waiting_since_s": None,
        "handle": "",
    }
    told = pause_sentence(Record(**{**given, **fields}), 100.0)
    assert said in told if said else told == ""
