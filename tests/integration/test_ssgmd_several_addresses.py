"""Requesters and hosts with several addresses, against schedulers of which one leads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.client import Connected, SchedulerClient
from gpu_scheduler.client.access import Access
from gpu_scheduler.client.commands.stream import of_everything
from gpu_scheduler.client.joining import IamJoin
from gpu_scheduler.client.status import SchedulerRole, system_status
from tests.integration.ssgmd.conftest import serving as ssgmd
from tests.integration.test_ssgmd_links import BUDGET, Host, Peer, friendly, serving, until


def leading(epoch: int) -> Callable[[Peer, dict[str, Any]], None]:
    """A scheduler that leads in an epoch."""

    def script(peer: Peer, message: dict[str, Any]) -> None:
        if message["op"] != "hello":
            friendly(peer, message)
        elif message["role"] == "requester":
            peer.send(id=message["id"], ok={"epoch": epoch, "now_s": 0.0})
        else:
            peer.send(id=message["id"], ok={"epoch": epoch, "installs": []})

    return script


def standby_of(leader: list[str]) -> Callable[[Peer, dict[str, Any]], None]:
    """A standby; `leader` has the address that it knows, if any."""

    def script(peer: Peer, message: dict[str, Any]) -> None:
        details = {"standby": True, **({"leader": leader[0]} if leader else {})}
        refusal = {"code": "unavailable", "message": "a standby", "details": details}
        peer.send(id=message["id"], error=refusal)

    return script


@contextlib.asynccontextmanager
async def closed() -> AsyncIterator[str]:
    """An address where nothing listens."""
    async with serving(friendly) as peer:
        address = peer.address
    yield address


@pytest.mark.asyncio
async def test_a_requester_finds_the_one_that_leads() -> None:
    async with (
        closed() as gone,
        serving(standby_of([])) as standby,
        serving(leading(4)) as leader,
        SchedulerClient(f"{gone},{standby.address},{leader.address}", budget=BUDGET) as client,
    ):
        await client.renew("a")
        assert "renew" in leader.ops()
        assert "renew" not in standby.ops()


@pytest.mark.asyncio
async def test_a_standby_names_a_leader_that_is_not_on_the_list() -> None:
    async with serving(leading(4)) as leader, serving(standby_of([leader.address])) as standby:
        async with SchedulerClient(standby.address, budget=BUDGET) as client:
            await client.renew("a")
        assert "renew" in leader.ops()


@pytest.mark.asyncio
async def test_a_join_by_role_goes_to_the_leader_that_a_standby_names() -> None:
    def joining(peer: Peer, message: dict[str, Any]) -> None:
        match message["op"]:
            case "join_challenge":
                peer.send(id=message["id"], ok={"server": "prod", "nonce": "n"})
            case "join":
                peer.send(id=message["id"], ok={"key": "iam-1.secret", "lasts_s": 3600.0})
            case _:
                leading(4)(peer, message)

    async def sign(server: str, nonce: str) -> str:
        return f"https://sts.example/?{server}&{nonce}"

    async with serving(joining) as leader, serving(standby_of([leader.address])) as standby:
        access = Access(source=IamJoin("gpu-a", "prod", sign))
        async with SchedulerClient(standby.address, budget=BUDGET, access=access) as client:
            await client.renew("a")
        assert leader.ops()[:3] == ["join_challenge", "join", "hello"]


@pytest.mark.asyncio
async def test_a_host_whose_key_a_new_leader_does_not_know_joins_again_there() -> None:
    """Keys of joined hosts are in a leader's memory. Its calls wait, and no address is tried."""
    keys = iter(["iam-2.new"])

    def forgetful(peer: Peer, message: dict[str, Any]) -> None:
        match message["op"]:
            case "join_challenge":
                peer.send(id=message["id"], ok={"server": "prod", "nonce": "n"})
            case "join":
                peer.send(id=message["id"], ok={"key": next(keys), "lasts_s": 3600.0})
            case "hello" if message["key"] != "iam-2.new":
                refusal = {"code": "denied", "message": "the key is not known", "details": {}}
                peer.send(id=message["id"], error=refusal)
            case _:
                leading(5)(peer, message)

    async def sign(server: str, nonce: str) -> str:
        return f"https://sts.example/?{server}&{nonce}"

    async with serving(forgetful) as leader, serving(leading(4)) as other:
        source = IamJoin("gpu-a", "prod", sign)
        source._key, source._due_s = "iam-1.old", float("inf")
        both = f"{leader.address},{other.address}"
        async with SchedulerClient(both, budget=BUDGET, access=Access(source=source)) as client:
            await client.renew("a")
        assert leader.ops()[:4] == ["hello", "join_challenge", "join", "hello"]
        assert other.connections == 0


@pytest.mark.asyncio
async def test_a_join_at_a_stopped_scheduler_ends_after_the_first_answer_is_due() -> None:
    def stopped(peer: Peer, message: dict[str, Any]) -> None:
        pass

    async def sign(server: str, nonce: str) -> str:
        raise AssertionError("nothing is signed")

    async with serving(stopped) as peer:
        host, _, port = peer.address.rpartition(":")
        with pytest.raises(TimeoutError):
            await IamJoin("gpu-a", "prod", sign).renew((host, int(port)), None, 0.01)
    assert peer.ops() == ["join_challenge"]


@pytest.mark.asyncio
async def test_what_was_in_flight_goes_to_the_next_leader() -> None:
    def dying(peer: Peer, message: dict[str, Any]) -> None:
        if message["op"] == "renew":
            peer.drop()
        else:
            leading(4)(peer, message)

    words: list[Any] = []
    async with serving(dying) as old, serving(leading(5)) as new:
        both = f"{old.address},{new.address}"
        async with SchedulerClient(both, budget=BUDGET, on_push=words.append) as client:
            await client.renew("a")
        assert "renew" in new.ops()
    assert [word.epoch for word in words if isinstance(word, Connected)] == [4, 5]


@pytest.mark.asyncio
async def test_a_leader_that_is_silent_is_left_for_the_next_address() -> None:
    def stopped(peer: Peer, message: dict[str, Any]) -> None:
        if message["op"] == "hello":
            leading(4)(peer, message)

    async with serving(stopped) as old, serving(leading(5)) as new:
        async with SchedulerClient(f"{old.address},{new.address}", budget=BUDGET) as client:
            await client.renew("a")
        assert "renew" in new.ops()


@pytest.mark.asyncio
async def test_a_requester_does_not_return_to_an_older_leader() -> None:
    """The old one was stopped, and continues: its answers would be out of date."""
    async with serving(leading(5)) as new, serving(leading(4)) as old:
        async with SchedulerClient(f"{new.address},{old.address}", budget=BUDGET) as client:
            await client.wait_connected(5)
            new.drop()
            await until(lambda: old.connections >= 1)
            await client.renew("a")
            assert client.epoch == 5
        assert "renew" in new.ops()
        assert "renew" not in old.ops()


@pytest.mark.asyncio
async def test_a_host_does_not_return_to_an_older_leader() -> None:
    """The old one was stopped, and continues; it could grant a share that is in use."""
    host = Host()
    async with serving(leading(5)) as new, serving(leading(4)) as old:
        async with host.link(f"{new.address},{old.address}") as link:
            await link.registered()
            new.drop()
            await until(lambda: old.connections >= 1)
            await until(lambda: new.connections >= 2)
            await link.registered()
            assert link.epoch_seen == 5
        assert "report" not in old.ops()


@pytest.mark.asyncio
async def test_the_address_of_each_is_in_the_error() -> None:
    async with (
        closed() as one,
        closed() as two,
        SchedulerClient(f"{one},{two}", budget=BUDGET, deadline_s=0.1) as client,
    ):
        with pytest.raises(AppError, match=f"{one}, {two}") as caught:
            await client.renew("a")
    assert caught.value.code is ErrorCode.UNAVAILABLE


@pytest.mark.asyncio
async def test_the_event_stream_comes_from_the_endpoint_that_serves(tmp_path: Any) -> None:
    async with closed() as gone, ssgmd(tmp_path / "state") as real:
        stream = of_everything(f"{gone},{real.daemon.http}", Access(), 10.0)
        async with contextlib.aclosing(stream) as events, asyncio.timeout(30):
            assert (await anext(events))["event"] == "started"


@pytest.mark.asyncio
async def test_the_status_of_a_scheduler_that_is_down_has_the_reason_in_words() -> None:
    async with closed() as gone:
        [found] = (await system_status(gone, Access(), 5.0)).schedulers
    assert (found.role, found.problem) == (SchedulerRole.UNKNOWN, "Connection refused")
