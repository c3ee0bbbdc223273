"""What the checker of preemption finds in a journal."""

from __future__ import annotations

import pytest

from corekit.ids import AttemptId, JobId, LeaseId
from gpu_scheduler.model import EndReason, Lease, LeaseState, Request
from gpu_scheduler.parameters import Parameters
from gpu_scheduler.protocol import changes as to
from simulator.faults.preemption_checker import PreemptionChecker

LEASE, VICTIM, URGENT = LeaseId("l1"), AttemptId("victim:1"), AttemptId("urgent:1")
AGREES = Request(preemptible=True)
PREEMPTS = Request(preempts=True, priority=5)


def checker(victim: Request = AGREES, urgent: Request = PREEMPTS) -> PreemptionChecker:
    """A checker that knows an active lease and a waiting request."""
    made = PreemptionChecker(Parameters(preempt_grace_s=10.0))
    lease = Lease(
        id=LEASE, attempt=VICTIM, holder=None, fence=1, state=LeaseState.RESERVED, shares=()
    )
    granted = to.LeaseGranted(
        lease=lease,
        request=victim,
        session=None,
        waiting_since_s=0.0,
        lease_s=None,
        granted_s=0.0,
        accepted=True,
    )
    waiting = to.Waiting(
        attempt=URGENT, holder=None, request=urgent, session=None, waiting_since_s=0.0
    )
    opened = to.LeaseChanged(lease=LEASE, state=LeaseState.ACTIVE)
    assert note(made, granted, to.RequestQueued(waiting=waiting), opened) == []
    return made


def note(
    made: PreemptionChecker, *parts: to.Part, wall_s: float = 0.0, by_host: bool = False
) -> list[str]:
    return made.note(to.Entry(parts=parts), wall_s, by_host=by_host)


NOTICE = to.LeasePreempted(lease=LEASE, attempt=URGENT)
END = to.LeaseChanged(lease=LEASE, state=LeaseState.ENDED, reason=EndReason.PREEMPTED)


def test_a_lease_that_agreed_ends_after_its_grace() -> None:
    made = checker()
    assert note(made, NOTICE, wall_s=1.0) == []
    assert note(made, END, wall_s=11.0) == []
    assert made.ended == {JobId("victim"): 1}


def test_its_session_may_end_earlier_by_itself() -> None:
    made = checker()
    note(made, NOTICE)
    assert note(made, END, wall_s=2.0, by_host=True) == []


@pytest.mark.parametrize(
    ("victim", "urgent"),
    [
        (AGREES, Request(priority=5)),
        (AGREES, Request(preempts=True)),
        (Request(preemptible=True, priority=5), PREEMPTS),
    ],
)
def test_a_request_that_may_not_preempt(victim: Request, urgent: Request) -> None:
    (found,) = note(checker(victim, urgent), NOTICE)
    assert found == "l1 is preempted for urgent:1, which may not preempt it"


def test_a_lease_that_did_not_agree() -> None:
    made = checker(victim=Request())
    assert note(made, NOTICE) == ["l1 is preempted, but did not agree to it"]
    ended = note(made, END, wall_s=10.0)
    assert ended == ["l1 ends as preempted, but did not agree to it"]


def test_an_end_without_its_notice_or_grace() -> None:
    assert note(checker(), END) == ["l1 ends as preempted without a notice"]
    made = checker()
    note(made, NOTICE, wall_s=1.0)
    assert note(made, END, wall_s=10.5) == ["l1 ends 0.500 s before its grace time is over"]
