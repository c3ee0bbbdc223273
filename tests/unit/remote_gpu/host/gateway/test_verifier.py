"""The verifier against forged, foreign, replayed, ended and second attempts."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from corekit.ids import LeaseId
from gpu_scheduler.model import EndReason
from remote_gpu.host.gateway.verifier import Verifier
from remote_gpu.host.leases.table import LeaseTable
from remote_gpu.wire.errors import Refused
from remote_gpu.wire.proof import Role
from tests.forgery import Attempt, Target, attempts
from tests.unit.remote_gpu.host.host_parts import D0, install


def attacked(seed: int, count: int) -> Counter[str]:
    """All attempts are refused for the right reason; returns how many of each kind there were."""
    draw, table = random.Random(seed), LeaseTable({D0: 100}, 30.0)
    targets = []
    for number in range(1, 5):
        secret, session = draw.randbytes(32), draw.randbytes(16).hex()
        table.install(install(f"lease-{number}", number, secret=secret), 0.0)
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
    for target in held:  # and the held leases are unaffected
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


def test_every_kind_of_forged_attempt_is_refused() -> None:
    assert len(attacked(seed=1, count=550)) == 11


@pytest.mark.soak
def test_a_hundred_thousand_attempts_are_refused() -> None:
    tried = attacked(seed=2, count=110_000)
    assert set(tried.values()) == {10_000}
