"""The stack in use, and its scheduler where this machine has the key and a way to it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from orchgpu.jobs import stack as stacks
from orchgpu.jobs.scheduler import answering_scheduler, scheduler_address, scheduler_or_none
from orchgpu.local.home import Home
from orchgpu.local.stack import StackRecord, keep_stack, kept_stack, stack_in_use

LAB = StackRecord(name="lab", account="123456789012", region="eu-west-1")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    for name in ("KEY", "KEY_FILE", "CA"):  # set by a scheduler that is used
        monkeypatch.setenv(f"ORCHGPU_SCHEDULER_{name}", "")
        monkeypatch.delenv(f"ORCHGPU_SCHEDULER_{name}")
    monkeypatch.chdir(tmp_path)
    stacks._reached.cache_clear()
    yield Home(tmp_path / ".orchgpu")
    stacks._reached.cache_clear()


@pytest.fixture
def listening() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def closed() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("named", "used"), [(None, True), ("lab", True), ("other", False), ("", False)]
)
def test_a_kept_stack_is_in_use_unless_another_one_or_none_is_named(
    home: Home, named: str | None, used: bool
) -> None:
    keep_stack(home, LAB)
    environ = {} if named is None else {"ORCHGPU_STACK": named}
    assert stack_in_use(home, environ) == (LAB if used else None)


def test_the_folder_of_access_stays_with_its_stack(home: Home) -> None:
    keep_stack(home, replace(LAB, access="/keys"))
    keep_stack(home, replace(LAB, schedulers="10.83.0.10:4700"))
    kept = kept_stack(home)
    assert kept == replace(LAB, schedulers="10.83.0.10:4700", access="/keys")
    keep_stack(home, replace(LAB, region="eu-north-1"))
    assert kept_stack(home) == replace(LAB, region="eu-north-1")


def test_the_scheduler_is_found_where_its_key_is_and_one_of_the_two_answers(
    home: Home, listening: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = f"{closed()},{listening}"
    keep_stack(home, replace(LAB, schedulers=both, access="/keys"))
    assert scheduler_address(None) == both
    assert os.environ["ORCHGPU_SCHEDULER_KEY_FILE"] == "/keys/operator.key"
    assert os.environ["ORCHGPU_SCHEDULER_CA"] == "/keys/ca.pem"
    assert scheduler_address("10.0.0.1:4700") == "10.0.0.1:4700", "the option comes first"
    monkeypatch.setenv("ORCHGPU_SCHEDULER", "10.0.0.2:4700")
    assert scheduler_address(None) == "10.0.0.2:4700"


def test_a_key_of_the_environment_comes_first(
    home: Home, listening: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHGPU_SCHEDULER_KEY", "ann.secret")
    keep_stack(home, replace(LAB, schedulers=listening, access="/keys"))
    assert scheduler_address(None) == listening
    assert "ORCHGPU_SCHEDULER_KEY_FILE" not in os.environ


@pytest.mark.parametrize(
    ("access", "text"),
    [
        ("", "the scheduler of the stack lab needs a key: `orchgpu infra outputs --stack lab"),
        ("/keys", "cannot be reached from here, outside of its network"),
    ],
)
def test_without_a_key_or_a_way_jobs_are_followed_by_their_results(
    home: Home, access: str, text: str
) -> None:
    keep_stack(home, replace(LAB, schedulers=closed(), access=access))
    with pytest.raises(AppError) as caught:
        scheduler_address(None)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert text in caught.value.message
    assert scheduler_or_none(None) is None
    notes: list[str] = []
    assert answering_scheduler(None, notes.append) is None
    assert notes == [f"jobs are followed by their results: {caught.value.message}"]


def test_a_stack_without_schedulers_has_none_to_reach(home: Home) -> None:
    keep_stack(home, replace(LAB, access="/keys"))
    assert scheduler_or_none(None) is None
