"""The verifier against all that must be refused: forged, foreign, replayed, ended, second."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from corekit.ids import DeviceId, HostId, LeaseId
from gpu_scheduler.model import DeviceKind, Door, EndReason, LeaseLifetime, LeaseState, Share
from gpu_scheduler.protocol.host import Install
from remote_gpu.host.gateway.verifier import Verifier
from remote_gpu.host.leases import LeaseTable
from remote_gpu.wire.errors import Refused
from remote_gpu.wire.proof import Role
from tests.forgery import Attempt, Target, attempts

DEVICE = DeviceId("h/cpu0")


def install(number: int, secret: bytes) -> Install:
    share = Share(
        host=HostId("h"),
        device=DEVICE,
        index=0,
        kind=DeviceKind.CPU,
        model="cpu",
        memory_mib=1,
        compute_guarantee_pct=0,
        compute_limit_pct=100,
        exclusive=False,
    )
    return Install(
        lease=LeaseId(f"lease-{number}"),
        fence=number,
        secret=secret.hex(),
        state=LeaseState.RESERVED,
        shares=(share,),
        tenant="t",
        hold=LeaseLifetime.SESSION,
        door=Door.GATEWAY,
        cap_s=None,
        connect_by_s=None,
    )


def attacked(seed: int, count: int) -> Counter[str]:
    """All attempts are refused for the right reason; returns how many of each kind there were."""
    draw, table = random.Random(seed), LeaseTable({DEVICE: 100}, 30.0)
    targets = []
    for number in range(1, 5):
        secret, session = draw.randbytes(32), draw.randbytes(16).hex()
        table.install(install(number, secret), 0.0)
        table.open(f"lease-{number}", session, 60.0, 0.0)
        targets.append(
            Target(lease=f"lease-{number}", fence=number, secret=secret, session=session)
        )
    *held, ended = targets
    table.end(LeaseId(ended.lease), EndReason.REVOKED, "by the test")
    verifier, tried = Verifier("h", table), Counter[str]()
    for one in itertools.islice(attempts(seed, "h", held, ended), count):
        assert refusal(verifier, table, one, draw) in one.codes, one
        tried[one.name] += 1
    for target in held:  # and nobody who was there is disturbed
        assert table.admit_lane(target.lease, target.session).nonce == target.session
    return tried


def refusal(verifier: Verifier, table: LeaseTable, one: Attempt, draw: random.Random) -> str:
    """As the gateway decides."""
    authority = draw.choice(["", "a certificate"])
    try:
        proving = verifier.proving(one.hello, draw.randbytes(16).hex(), authority)
        nonce = proving.challenge["challenge"]["nonce"]
        if not proving.accepts(one.prove(nonce, authority)):
            return "DENIED"
        if one.hello.role is Role.SESSION:
            table.open(one.hello.lease, one.hello.session, 60.0, 1.0)
        else:
            table.admit_lane(one.hello.lease, one.hello.session)
    except Refused as refused:
        return refused.code
    return "LET IN"


def test_whatever_must_be_refused_is() -> None:
    assert len(attacked(seed=1, count=550)) == 11


@pytest.mark.soak
def test_a_hundred_thousand_attempts_are_refused() -> None:
    tried = attacked(seed=2, count=110_000)
    assert set(tried.values()) == {10_000}
