"""Records of jobs that ended before any attempt."""

import pytest

from corekit.decode import decode
from corekit.errors import AppError
from gpu_scheduler.model import Step
from gpu_scheduler.protocol import ops
from tests.scheduler_world import World


def test_a_job_that_ended_before_its_first_attempt_has_a_terminal_record(one: World) -> None:
    gone = {
        "holder": "gone",
        "outcome": "INPUT_GONE",
        "reason": "INPUT_DELETED",
        "detail": "",
        "block": {"function": "f"},
        "received_ago_s": 2.0,
        "committed_ago_s": 0.5,
    }
    record = one.ask(ops.Finish, "s1", **gone).record
    assert (record.step, record.outcome, record.owner) == (Step.ENDED, "INPUT_GONE", None)
    assert (record.revision, record.attempt, record.block) == (1, 0, {"function": "f"})
    assert record.times["ENDED"] - record.times["RECEIVED"] == 2.0
    assert one.ask(ops.Finish, "s2", **gone).record == record
    one.advance(one.budget.record_forget_s)
    assert "gone" not in one.machine.state.records


def test_the_block_of_an_ended_job_is_limited() -> None:
    fields = {"holder": "gone", "outcome": "INPUT_GONE", "reason": "INPUT_DELETED"}
    with pytest.raises(AppError, match="block has 5008 bytes; at most 4096"):
        decode(ops.Finish, {**fields, "block": {"x": "y" * 5000}})
    decode(ops.Finish, {**fields, "block": {"x": "y" * 4000}})
