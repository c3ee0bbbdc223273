"""The small parts of the server: the state log, long polls, checked fields, policies."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corekit.aio.vloop import run_virtual
from corekit.errors import AppError
from local_cloud.model.policies import Access, allows
from local_cloud.model.sqs.queue import Queue
from local_cloud.model.sqs.queues import Queues
from local_cloud.server import state_log as state_module
from local_cloud.server.functions.service import LAMBDA
from local_cloud.server.polling import Pollers
from local_cloud.server.services import BadField, fitted
from local_cloud.server.state_log import StateLog

# --- the state log


def never(_flush: Callable[[], None]) -> None:
    """The tests flush themselves."""


def test_the_last_value_of_a_key_wins_and_lasts(tmp_path: Path) -> None:
    log = StateLog(tmp_path, never)
    for value in (1, 2):
        log.put("queue/a%2Fb", value)
    log.put("queue/gone", 3)
    log.drop("queue/gone")
    log.drop("queue/never was")
    log.close()
    again = StateLog(tmp_path, never)
    assert list(again.items("queue")) == [(["a/b"], 2)]
    assert again.get("queue/gone") is None
    again.close()


def test_a_torn_line_is_skipped(tmp_path: Path) -> None:
    log = StateLog(tmp_path, never)
    log.put("kind/a", "kept")
    log.close()
    with (tmp_path / "cloud.jsonl").open("ab") as file:
        file.write(b'["kind/b", "to')
    log = StateLog(tmp_path, never)
    assert list(log.items("kind")) == [(["a"], "kept")]
    log.close()


def test_changes_without_a_request_are_written_soon(tmp_path: Path) -> None:
    soon: list[Callable[[], None]] = []
    log = StateLog(tmp_path, soon.append)
    log.put("kind/a", 1)
    log.put("kind/b", 2)
    assert len(soon) == 1
    soon[0]()
    assert (tmp_path / "cloud.jsonl").read_bytes().count(b"\n") == 2
    log.close()


def test_a_full_disk_loses_nothing_that_fits_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = StateLog(tmp_path, never)
    log.put("kind/a", "first")
    real_write = os.write

    def half(file: int, data: Any) -> int:
        if len(data) < 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(file, bytes(data[:8]))

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError, match="No space"):
        log.flush()
    monkeypatch.undo()
    log.put("kind/b", "second")
    log.close()
    again = StateLog(tmp_path, never)
    assert {path[0]: value for path, value in again.items("kind")} == {
        "a": "first",
        "b": "second",
    }
    again.close()


def test_the_log_is_rewritten_when_it_is_mostly_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "COMPACT_BYTES", 1000)
    log = StateLog(tmp_path, never)
    for number in range(200):
        log.put("kind/a", number)
        log.flush()
        assert (tmp_path / "cloud.jsonl").stat().st_size < 1100
    log.close()
    again = StateLog(tmp_path, never)
    assert again.get("kind/a") == 199
    again.close()


def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    log = StateLog(tmp_path, never)
    with pytest.raises(AppError, match="in use by another"):
        StateLog(tmp_path, never)
    log.close()
    StateLog(tmp_path, never).close()


# --- long polls


class World:
    """One queue and its pollers on virtual time."""

    def __init__(self) -> None:
        self.now_s = asyncio.get_running_loop().time
        self.pollers = Pollers(self.now_s)
        self.queue: Queue = Queues().create(0.0, "q", {"VisibilityTimeout": "5"})

    def send(self, delay_s: float = 0) -> None:
        self.queue.send(self.now_s(), "x", delay_s=delay_s)
        self.pollers.touched(self.queue)

    async def receive(self, wait_s: float) -> tuple[float, int]:
        """When, and how many receipts the message has had; 0 for none."""
        ends_s = self.now_s() + wait_s
        while True:
            found = self.queue.receive(self.now_s())
            if found or self.now_s() >= ends_s:
                break
            await self.pollers.wait(self.queue, ends_s - self.now_s())
        if self.queue.has_visible(self.now_s()):
            self.pollers.wake(self.queue)
        return round(self.now_s(), 2), found[0].receives if found else 0


def test_a_poller_is_woken_by_a_message_a_delay_and_a_passed_visibility() -> None:
    async def main() -> list[tuple[float, int]]:
        world = World()
        loop = asyncio.get_running_loop()
        loop.call_later(1.0, world.send)
        loop.call_later(1.0, world.send, 3.0)
        return [await world.receive(20.0) for _ in range(4)]

    assert run_virtual(main()) == [(1.0, 1), (4.0, 1), (6.0, 2), (9.0, 2)]


def test_an_empty_poll_takes_exactly_its_time() -> None:
    async def main() -> tuple[float, int]:
        return await World().receive(20.0)

    assert run_virtual(main()) == (20.0, 0)


def test_each_message_wakes_one_poller_and_a_cancelled_one_passes_it_on() -> None:
    async def main() -> list[tuple[float, int]]:
        world = World()
        pollers = [asyncio.ensure_future(world.receive(20.0)) for _ in range(3)]
        await asyncio.sleep(1)
        world.send()
        pollers[0].cancel()  # woken, and gone before it could receive
        world.send()
        await asyncio.wait([pollers[0]])
        return [await poller for poller in pollers[1:]]

    assert run_virtual(main()) == [(1.0, 1), (1.0, 1)]


# --- fields by AWS's model

CREATE = LAMBDA.model("CreateFunction").input_shape
NEEDED: dict[str, Any] = {
    "FunctionName": "f",
    "Code": {},
    "Role": "arn:aws:iam::000000000000:role/r",
}


def test_nulls_and_unknown_fields_vanish() -> None:
    given = {**NEEDED, "Timeout": None, "VpcConfig": {"SubnetIds": None}, "Other": 5}
    assert fitted(given, CREATE) == {**NEEDED, "VpcConfig": {}}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"Description": 1}, "Description"),
        ({"Timeout": True}, "Timeout"),
        ({"Timeout": "1"}, "Timeout"),
        ({"MemorySize": 64}, "MemorySize"),
        ({"Architectures": {}}, "Architectures"),
        ({"Architectures": ["riscv"]}, "Architectures[0]"),
        ({"Environment": {"Variables": {"A": 1}}}, "Environment.Variables.A"),
        ({"KMSKeyArn": "alias/x"}, "KMSKeyArn"),
    ],
)
def test_a_field_that_the_model_does_not_allow_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(BadField) as error:
        fitted({**NEEDED, **change}, CREATE)
    assert named in str(error.value)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(KeyError, match="Role"):
        fitted({"FunctionName": "f", "Code": {}}, CREATE)


# --- policies

ACCESS = Access(
    service="s3.amazonaws.com",
    action="sqs:SendMessage",
    resource="arn:aws:sqs:r:1:q",
    source_arn="arn:aws:s3:::bucket",
    source_account="1",
)
STATEMENT: dict[str, Any] = {
    "Effect": "Allow",
    "Principal": {"Service": "s3.amazonaws.com"},
    "Action": "sqs:SendMessage",
    "Resource": "arn:aws:sqs:r:1:q",
}


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ({}, True),
        ({"Principal": "*"}, True),
        ({"Principal": {"AWS": "*"}}, True),
        ({"Principal": {"Service": "sns.amazonaws.com"}}, False),
        ({"Action": ["sqs:Receive*", "SQS:*"]}, True),
        ({"Action": "sqs:ReceiveMessage"}, False),
        ({"Resource": "arn:aws:sqs:*:*:q"}, True),
        ({"Resource": "arn:aws:sqs:r:1:other"}, False),
        ({"Condition": {"ArnLike": {"aws:SourceArn": "arn:aws:s3:*:*:buck*"}}}, True),
        ({"Condition": {"ArnEquals": {"aws:SourceArn": "arn:aws:s3:::other"}}}, False),
        ({"Condition": {"StringEquals": {"aws:SourceAccount": ["2", "1"]}}}, True),
        ({"Condition": {"Bool": {"aws:SecureTransport": "true"}}}, False),
        ({"Effect": "Deny"}, False),
    ],
)
def test_policies(change: dict[str, Any], allowed: bool) -> None:
    policy = json.dumps({"Statement": {**STATEMENT, **change}})
    assert allows(policy, ACCESS) is allowed
    denied = json.dumps({"Statement": [{**STATEMENT, **change}, {**STATEMENT, "Effect": "Deny"}]})
    assert not allows(denied, ACCESS)


@pytest.mark.parametrize("policy", ["", "{", "[]", "{}", '{"Statement": "x"}'])
def test_a_policy_that_is_none_allows_nothing(policy: str) -> None:
    assert not allows(policy, ACCESS)
