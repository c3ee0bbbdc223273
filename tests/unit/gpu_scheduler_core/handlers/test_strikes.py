"""Strikes: the orchestrators that ended, and only those, while they packed a job."""

import pytest

from gpu_scheduler.protocol import ops
from tests.scheduler_world import World
from tests.unit.gpu_scheduler_core.handlers.record_ops import adopt, die, fail, hand_back


def test_strikes_count_owners_that_ended_while_packing(one: World) -> None:
    one.attempt()
    for strikes, session in enumerate(("s2", "s3", "s4"), 1):
        die(one)
        assert adopt(one, session).record.strikes == strikes
    assert one.record().ended_owners == ("s1", "s2", "s3")
    one.staged(one.leases[0], "s4")
    assert one.record().strikes == 0
    one.advance(9.9)
    die(one)
    assert adopt(one, "s5").record.strikes == 0


#: What happens to a job that is being packed, in order; the strikes that are left.
SILENCES = {
    "its owner was silent and takes it back, again and again": (
        ["silent s1", "adopt s1", "silent s1", "adopt s1", "silent s1", "adopt s1"],
        0,
    ),
    "its owner is seen before another one takes it": (["silent s1", "beat s1", "adopt s2"], 0),
    "its owner is seen after another one took it": (["silent s1", "adopt s2", "beat s1"], 0),
    "both were silent, one is seen": (["silent s1", "adopt s2", "silent s2", "beat s1"], 1),
    "both were silent, both are seen": (
        ["silent s1", "adopt s2", "silent s2", "adopt s3", "beat s2", "beat s1"],
        0,
    ),
    "its owner ended in order": (["hand back s1", "attempt s2"], 0),
    "its owner ended": (["silent s1", "adopt s2"], 1),
    "its owner ended, the next one in order": (["silent s1", "adopt s2", "hand back s2"], 1),
    "its owner ended, the next one failed": (["silent s1", "adopt s2", "fail s2"], 1),
    "its owner ended, the scheduler too": (["silent s1", "restart", "adopt s2"], 1),
    "its owner was silent, the scheduler ended": (["silent s1", "restart", "beat s1"], 0),
}


@pytest.mark.parametrize(("course", "strikes"), SILENCES.values(), ids=SILENCES.keys())
def test_a_session_that_is_seen_again_has_not_ended(
    one: World, course: list[str], strikes: int
) -> None:
    one.attempt()
    for happened in course:
        what, _, session = happened.rpartition(" ")
        record = one.record()
        match what:
            case "silent":
                die(one)
                assert one.record().owner is None
            case "adopt":
                assert adopt(one, session).record.owner == session
            case "beat":
                one.ask(ops.Beat, session)
            case "hand back":
                hand_back(one, record.revision, session)
            case "attempt":
                one.attempt(session=session, revision=record.revision)
            case "fail":
                fail(one, record.revision, session)
            case _:
                one.start()
    assert one.record().strikes == strikes
