"""SkyPilot as a provider of hosts, beside the contract: what fails, and what is taken back."""

from __future__ import annotations

import functools
import json
import sys
import time
from pathlib import Path

import pytest

from corekit.errors import AppError, ErrorCode
from orchgpu.fleet.ports.port import PortGroup
from orchgpu.fleet.ports.skypilot import SkyFleet
from tests.fleet_ports import GROUP, in_loop, made_tasks, seen, until


@in_loop
async def test_a_launch_that_fails_is_missing_until_it_is_withdrawn(tmp_path: Path) -> None:
    made_tasks(tmp_path)
    (tmp_path / "refusing").touch()
    port = SkyFleet(tmp_path)
    await port.grow(GROUP, 1)
    group = await until(port, lambda group: bool(group.refusal))
    assert (group.size, group.hosts, group.refusal) == (1, (), "SkyPilot: `sky api logs r0`")
    await port.withdraw(GROUP)
    assert await seen(port) == PortGroup(name=GROUP, size=0, hosts=())


def _clock(ahead_s: float) -> float:
    return time.time() + ahead_s


@in_loop
async def test_a_failure_is_of_an_order_by_the_clock_of_the_server(tmp_path: Path) -> None:
    made_tasks(tmp_path)
    (tmp_path / "refusing").touch()
    ahead, behind = (SkyFleet(tmp_path, functools.partial(_clock, s)) for s in (7200.0, -7200.0))
    await ahead.grow(GROUP, 1)
    assert (await until(ahead, lambda group: bool(group.refusal))).size == 1
    assert (await seen(behind)).size == 0, "of an earlier fleet"


@in_loop
async def test_an_order_is_cancelled_and_what_it_had_begun_is_ended(tmp_path: Path) -> None:
    made_tasks(tmp_path)
    port = SkyFleet(tmp_path)
    await port.grow(GROUP, 1)
    await port.withdraw(GROUP)
    assert (await seen(port)).size == 0
    await seen(port)
    state = json.loads((tmp_path / "sky.json").read_text())
    assert [one["status"] for one in state["requests"]] == ["CANCELLED", "SUCCEEDED"]
    assert state["clusters"] == {}


@in_loop
async def test_a_program_that_fails_or_is_absent_is_asked_again_later(tmp_path: Path) -> None:
    made_tasks(tmp_path)
    for command, text in (
        ([sys.executable, "-c", "raise SystemExit('no API server')"], "no API server"),
        ([str(tmp_path / "sky")], "No such file"),
        (["true"], "sky"),
    ):
        (tmp_path / "skypilot.json").write_text(json.dumps({"command": command}))
        with pytest.raises(AppError, match=text) as caught:
            await seen(SkyFleet(tmp_path))
        assert caught.value.code is ErrorCode.UNAVAILABLE
    with pytest.raises(AppError, match=r"other\.yaml is missing: SkyPilot") as caught:
        await SkyFleet(tmp_path).list(("other",))
    assert caught.value.code is ErrorCode.NOT_FOUND
