"""Queues by AWS's rules: visibility, handles, redrive, delay, retention."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from corekit.ids import IdSource
from local_cloud.model.errors import CloudError
from local_cloud.model.sqs.queue import Queue
from local_cloud.model.sqs.queues import Queues


def queue_with(*bodies: str, **attributes: str) -> Queue:
    queue = Queues(ids=IdSource(1)).create(0.0, "q", attributes)
    for body in bodies:
        queue.send(0.0, body)
    return queue


def refusal(error: pytest.ExceptionInfo[CloudError]) -> str:
    return error.value.code


@pytest.mark.parametrize("handle", ["", "nonsense", "YQ==", "eC95L3o="])
def test_a_handle_that_is_none_is_refused(handle: str) -> None:
    queue = queue_with("a")
    with pytest.raises(CloudError) as error:
        queue.delete(0.0, handle)
    assert refusal(error) == "ReceiptHandleIsInvalid"


def test_changing_the_visibility_of_a_message_not_in_flight_is_refused() -> None:
    queue = queue_with("a")
    handle = queue.receive(0.0, visibility_s=1.0)[0].handle
    with pytest.raises(CloudError) as visible:
        queue.change_visibility(2.0, handle, 10.0)
    queue.receive(2.0)
    with pytest.raises(CloudError) as stale:
        queue.change_visibility(2.0, handle, 10.0)
    assert (refusal(visible), refusal(stale)) == ("MessageNotInflight", "InvalidParameterValue")


def test_a_dead_message_moves_with_its_id_body_and_age() -> None:
    queues = Queues(ids=IdSource(1))
    dead = queues.create(0.0, "dead")
    redrive = f'{{"deadLetterTargetArn": "{dead.arn}", "maxReceiveCount": "2"}}'
    queue = queues.create(0.0, "q", {"RedrivePolicy": redrive, "VisibilityTimeout": "1"})
    woken: list[str] = []
    queues.on_message = lambda q: woken.append(q.name)
    sent = queue.send(5.0, "poison")
    for at_s in (10.0, 12.0):
        assert len(queue.receive(at_s)) == 1
    assert queue.receive(14.0) == []
    found = dead.receive(14.0)[0]
    assert (found.id, found.body, found.sent_at_s, found.receives) == (sent.id, "poison", 5.0, 1)
    assert found.source_arn == queue.arn
    assert woken == ["dead"]


def test_without_its_dead_letter_queue_a_message_stays() -> None:
    queues = Queues(ids=IdSource(1))
    arn = queues.account.queue_arn("gone")
    redrive = f'{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": 1}}'
    queue = queues.create(0.0, "q", {"RedrivePolicy": redrive, "VisibilityTimeout": "0"})
    queue.send(0.0, "a")
    assert [queue.receive(float(t))[0].receives for t in range(3)] == [1, 2, 3]


def test_retention_drops_expired_messages() -> None:
    queue = queue_with("old", MessageRetentionPeriod="60")
    queue.send(59.0, "young")
    assert [m.body for m in queue.receive(60.0, count_max=10)] == ["young"]


@pytest.mark.parametrize(
    ("attributes", "code"),
    [
        ({"VisibilityTimeout": "43201"}, "InvalidAttributeValue"),
        ({"VisibilityTimeout": "soon"}, "InvalidAttributeValue"),
        ({"RedrivePolicy": "{}"}, "InvalidAttributeValue"),
        ({"Nonsense": "1"}, "InvalidAttributeName"),
        ({"FifoQueue": "true"}, "NotImplemented"),
    ],
)
def test_bad_attributes_are_named(attributes: dict[str, str], code: str) -> None:
    with pytest.raises(CloudError) as error:
        Queues().create(0.0, "q", attributes)
    assert refusal(error) == code
    assert next(iter(attributes)) in error.value.message or code == "NotImplemented"


class AnyOrder(RuleBasedStateMachine):
    """Every message is visible, hidden or deleted, never lost and never held twice."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = queue_with()
        self.now_s = 0.0
        self.alive: set[str] = set()
        self.held: dict[str, tuple[str, float]] = {}  # id -> newest handle, until when
        self.handles: list[str] = []

    @rule(delay_s=st.sampled_from([0.0, 0.0, 3.0]))
    def send(self, delay_s: float) -> None:
        self.alive.add(self.queue.send(self.now_s, "x", delay_s=delay_s).id)

    @rule(count=st.integers(1, 10), visibility_s=st.sampled_from([0.0, 1.0, 5.0]))
    def receive(self, count: int, visibility_s: float) -> None:
        for message in self.queue.receive(self.now_s, count_max=count, visibility_s=visibility_s):
            assert message.id in self.alive
            assert self.held.get(message.id, ("", 0.0))[1] <= self.now_s
            self.held[message.id] = (message.handle, self.now_s + visibility_s)
            self.handles.append(message.handle)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        if self.handles:
            handle = data.draw(st.sampled_from(self.handles))
            newest = {h: name for name, (h, _) in self.held.items() if name in self.alive}
            assert self.queue.delete(0.0, handle) is (handle in newest)
            self.alive.discard(newest.get(handle, ""))

    @rule(step_s=st.sampled_from([0.5, 1.0, 4.0]))
    def wait(self, step_s: float) -> None:
        self.now_s += step_s

    @invariant()
    def nothing_is_lost(self) -> None:
        counts = self.queue.counts(self.now_s)
        assert counts.visible + counts.in_flight + counts.delayed == len(self.alive)
        assert self.queue.has_visible(self.now_s) is (counts.visible > 0)


TestAnyOrder = AnyOrder.TestCase
