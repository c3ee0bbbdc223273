"""Hosts that join by their IAM role: real signatures, a real ssgmd, a stand-in for STS."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from corekit.net.addresses import parse_address
from gpu_scheduler.client.access import Access
from gpu_scheduler.client.joining import IamJoin
from gpu_scheduler.daemon.access import iam_join
from gpu_scheduler.daemon.access.keys import KeyEntry, KeyRole, add_key
from gpu_scheduler.monitor.link import HostLink
from gpu_scheduler.monitor.probes import FileProbe
from gpu_scheduler.monitor.watched import WatchedHost
from remote_gpu.host.credentials.iam import RoleProof
from tests.integration.ssgmd.conftest import Endpoints, Peer, serving
from tests.sts import ROLE_ARN, Sts, serving_sts

HOST = "i-0abc"
HELLO: dict[str, Any] = {
    "role": "host",
    "host": HOST,
    "incarnation": "one",
    "gateway": "127.0.0.1:1",
    "devices": [],
    "epoch_seen": 0,
    "installed": [],
}


@dataclass(frozen=True)
class World:
    """One ssgmd with rules, and the STS that it asks."""

    daemon: Endpoints
    sts: Sts
    endpoint: str
    rules: Path

    @property
    def address(self) -> tuple[str, int]:
        return parse_address(self.daemon.daemon.socket)

    def proof(self, endpoint: str | None = None) -> RoleProof:
        return RoleProof("eu-central-1", endpoint=endpoint or self.endpoint)

    async def join(self, host: str = HOST, server: str = "prod") -> str | None:
        join = IamJoin(host, server, self.proof().url)
        await join.renew(self.address, None, 5.0)
        return join.key

    async def denied(self, host: str = HOST, server: str = "prod") -> str:
        with pytest.raises(AppError) as caught:
            await self.join(host, server)
        assert caught.value.code is ErrorCode.DENIED
        return caught.value.message


def write_rules(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


@contextlib.asynccontextmanager
async def world(folder: Path, *role: str) -> AsyncIterator[World]:
    add_key(folder / "state/keys.json", KeyEntry(name="op", role=KeyRole.OPERATOR, sha256="0" * 64))
    async with serving_sts() as (sts, endpoint):
        named = role or (f'arn = "{ROLE_ARN}"',)
        sts_line = f'sts = ["{endpoint}"]'
        rules = write_rules(folder / "roles.toml", 'server = "prod"', sts_line, "[[role]]", *named)
        async with serving(folder / "state", join_iam=rules) as daemon:
            yield World(daemon, sts, endpoint, rules)


@pytest_asyncio.fixture
async def one(credentials: None, tmp_path: Path) -> AsyncIterator[World]:
    """A scheduler whose rules name the role of `credentials`."""
    del credentials
    async with world(tmp_path) as found:
        yield found


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDROLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a/token+with=signs")


@pytest.mark.asyncio
async def test_a_host_joins_and_acts_as_itself_only(one: World) -> None:
    key = await one.join()
    async with one.daemon.peer() as peer:
        assert "ok" in await peer.hello(**HELLO, key=key)
    async with one.daemon.peer() as peer:
        refused = await peer.hello(**{**HELLO, "host": "i-other"}, key=key)
        assert refused["error"]["code"] == "denied"
    async with one.daemon.peer() as peer:
        requester = await peer.hello(key=key)
        assert requester["error"]["code"] == "denied", "it is a host"


@pytest.mark.asyncio
async def test_a_host_gets_a_key_for_its_own_instance_only(one: World) -> None:
    assert "--host-id i-0abc" in await one.denied("i-other")
    one.sts.arn = "arn:aws:sts::123456789012:assumed-role/other/i-0abc"
    assert "may not join" in await one.denied()
    one.sts.arn = "arn:aws:sts::210987654321:assumed-role/gpu-host/i-0abc"
    assert "may not join" in await one.denied()
    one.sts.arn = "arn:aws:iam::123456789012:user/gpu-host"
    assert "not a role session" in await one.denied()


@pytest.mark.asyncio
async def test_any_host_of_a_role_that_names_none(tmp_path: Path) -> None:
    role = (f'arn = "{ROLE_ARN.replace("gpu-host", "path/gpu-host")}"', 'hosts = "any"')
    async with world(tmp_path, *role) as one:
        assert await one.join("gpu-a") is not None


@pytest.mark.asyncio
async def test_a_request_for_another_scheduler_is_refused(one: World) -> None:
    assert "nothing was signed" in await one.denied(server="other")
    assert one.sts.requests == []
    async with one.daemon.peer() as peer:
        challenge = await peer.ask(op="join_challenge")
        url = await one.proof().url("other", challenge["ok"]["nonce"])
        answer = await peer.ask(op="join", host=HOST, url=url)
        assert answer["error"]["code"] == "denied"
        assert "STS refused the request: 403, The signature" in answer["error"]["message"]


@pytest.mark.asyncio
async def test_a_request_is_of_use_once_and_on_its_connection_only(one: World) -> None:
    async def joined(peer: Peer, url: str) -> str:
        answer = await peer.ask(op="join", host=HOST, url=url)
        return "joined" if "ok" in answer else str(answer["error"]["message"])

    async with one.daemon.peer() as peer:
        challenge = await peer.ask(op="join_challenge")
        url = await one.proof().url("prod", challenge["ok"]["nonce"])
        assert await joined(peer, url) == "joined"
        assert "there is no nonce" in await joined(peer, url)
        await peer.ask(op="join_challenge")
        assert "does not match" in await joined(peer, url), "that nonce is another one"
        async with one.daemon.peer() as thief:
            assert "there is no nonce" in await joined(thief, url)
            await thief.ask(op="join_challenge")
            assert "does not match" in await joined(thief, url)


@pytest.mark.asyncio
async def test_wrong_and_unknown_credentials(one: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert "does not match" in await one.denied()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDOTHER")
    assert "security token included in the request is invalid" in await one.denied()


@pytest.mark.asyncio
async def test_nothing_is_sent_to_any_other_place(one: World) -> None:
    async with serving_sts() as (other, elsewhere):
        for endpoint in (elsewhere, f"{one.endpoint}@127.0.0.1:1", f"{one.endpoint}/path"):
            async with one.daemon.peer() as peer:
                challenge = await peer.ask(op="join_challenge")
                url = await one.proof(endpoint).url("prod", challenge["ok"]["nonce"])
                answer = await peer.ask(op="join", host=HOST, url=url)
                assert "not an allowed endpoint" in answer["error"]["message"]
        one.sts.location = elsewhere
        assert "a redirect" in await one.denied()
        assert other.requests == []


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Action=GetCallerIdentity", "Action=GetSessionToken"),
        ("X-Amz-Expires=60", "X-Amz-Expires=604800"),
        ("x-orchgpu-nonce%3B", ""),
        ("Version=2011-06-15", "Version=2011-06-15&Version=2011-06-15"),
        ("Version=2011-06-15", "Version=2011-06-15&DurationSeconds=1"),
        ("X-Amz-Date", "X-Amz-When"),
    ],
)
async def test_no_other_request_is_sent(one: World, old: str, new: str) -> None:
    async with one.daemon.peer() as peer:
        challenge = await peer.ask(op="join_challenge")
        url = await one.proof().url("prod", challenge["ok"]["nonce"])
        assert old in url
        answer = await peer.ask(op="join", host=HOST, url=url.replace(old, new))
        assert answer["error"]["code"] == "denied"
        assert one.sts.requests == []


def test_an_sts_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def failure(one: World) -> str:
        with pytest.raises(AppError) as caught:
            await one.join()
        assert caught.value.code is ErrorCode.UNAVAILABLE
        return caught.value.message

    async def main() -> None:
        async with world(tmp_path) as one:
            one.sts.status = 503
            assert "503" in await failure(one)
            one.sts.status, one.sts.body = None, "<html>"
            assert "names no identity" in await failure(one)
            one.sts.body = "<!DOCTYPE a><GetCallerIdentityResponse/>"
            assert "names no identity" in await failure(one)
            one.sts.hangs = True
            monkeypatch.setattr(iam_join, "STS_S", 0.05)
            assert "did not answer" in await failure(one)

    asyncio.run(main())  # it cancels the request that hangs


@pytest.mark.asyncio
async def test_a_role_that_is_removed_may_no_longer_act(one: World) -> None:
    key = await one.join()
    async with one.daemon.peer() as peer:
        assert "ok" in await peer.hello(**HELLO, key=key)
        text = one.rules.read_text().replace("role/gpu-host", "role/another")
        write_rules(one.rules, text)
        one.daemon.daemon.reread.set()
        assert await peer.next() is None, "its connection is closed"
    async with one.daemon.peer() as peer:
        assert (await peer.hello(**HELLO, key=key))["error"]["code"] == "denied"


@pytest.mark.asyncio
async def test_an_expired_key_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iam_join, "KEY_S", 0.0)
    async with world(tmp_path) as one:
        key = await one.join()
        async with one.daemon.peer() as peer:
            assert (await peer.hello(**HELLO, key=key))["error"]["code"] == "denied"


@pytest.mark.asyncio
async def test_a_host_has_few_keys_and_the_oldest_one_is_revoked(tmp_path: Path) -> None:
    role = (f'arn = "{ROLE_ARN}"', 'hosts = "any"')
    async with world(tmp_path, *role) as one:
        another = await one.join("gpu-other")
        keys = [await one.join() for _ in range(iam_join.KEYS_PER_HOST)]
        async with one.daemon.peer() as peer, one.daemon.peer() as newest:
            assert "ok" in await peer.hello(**HELLO, key=keys[0])
            last = await one.join()
            one.daemon.daemon.reread.set()
            assert await peer.next() is None, "the connection of a revoked key is closed"
            assert "ok" in await newest.hello(**HELLO, key=last)
        for key, answer in ((keys[0], "error"), (keys[1], "ok"), (another, "ok")):
            host = "gpu-other" if key == another else HOST
            async with one.daemon.peer() as peer:
                assert answer in await peer.hello(**{**HELLO, "host": host}, key=key)


@pytest.mark.asyncio
async def test_the_keys_of_all_hosts_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iam_join, "KEYS_MAX", 1)
    async with world(tmp_path, f'arn = "{ROLE_ARN}"', 'hosts = "any"') as one:
        assert await one.join("gpu-a") is not None
        with pytest.raises(AppError, match="1 keys of hosts are in force") as caught:
            await one.join("gpu-b")
        assert caught.value.code is ErrorCode.EXHAUSTED


@pytest.mark.asyncio
async def test_a_scheduler_without_roles(tmp_path: Path) -> None:
    async with serving(tmp_path / "state") as daemon, daemon.peer() as peer:
        answer = await peer.ask(op="join_challenge")
        assert "--join-iam" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["server = 'a'"], "sts"),
        (["server = 'a b'", "sts = ['https://x']", "[[role]]", f"arn = '{ROLE_ARN}'"], "server"),
        (["server = 'a'", "sts = ['http://x']", "[[role]]", f"arn = '{ROLE_ARN}'"], "https"),
        (["server = 'a'", "sts = ['https://x']", "[[role]]", "arn = 'role/x'"], "arn:aws:iam"),
        (
            [
                "server = 'a'",
                "sts = ['https://x']",
                "[[role]]",
                f"arn = '{ROLE_ARN}'",
                "hosts = 'x'",
            ],
            "hosts",
        ),
        (["server"], "TOML"),
    ],
)
def test_rules_that_are_not_valid(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(AppError, match=message):
        iam_join.read_rules(write_rules(tmp_path / "roles.toml", *lines))


def test_roles_need_keys(tmp_path: Path) -> None:
    async def main() -> None:
        valid = ["server = 'a'", "sts = ['https://x']", "[[role]]", f"arn = '{ROLE_ARN}'"]
        rules = write_rules(tmp_path / "roles.toml", *valid)
        async with serving(tmp_path / "state", join_iam=rules):
            raise AssertionError("it must not start")

    with pytest.raises(AppError, match="keys file"):
        asyncio.run(main())


def link_of(one: World, source: IamJoin) -> HostLink:
    """The link of a host with one device."""
    inventory = one.rules.with_name("devices.yaml")
    inventory.write_text("devices: [{kind: cpu, model: m, memory_mib: 10}]\n")
    return HostLink(
        one.daemon.daemon.socket,
        host=HOST,
        control=WatchedHost(),
        probe=FileProbe(inventory, HOST),
        gateway=None,
        budget=Budget().scaled(0.02),
        access=Access(source=source),
    )


@pytest.mark.asyncio
async def test_a_host_renews_its_key_while_it_is_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_scheduler.daemon.endpoints.socket_endpoint.KEY_S", 0.1)
    async with world(tmp_path) as one:
        source = IamJoin(HOST, "prod", one.proof().url)
        link = link_of(one, source)
        async with link, asyncio.timeout(60):
            await link.registered()
            first = source.key
            while len(one.sts.requests) < 3:  # noqa: ASYNC110 - another program's progress
                await asyncio.sleep(0.01)
            assert source.key != first
            source.refused()  # as after a restart of the scheduler
            await link.registered()


@pytest.mark.asyncio
async def test_a_host_whose_role_is_refused_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    async with world(tmp_path) as one:
        link = link_of(one, IamJoin(HOST, "prod", one.proof().url))
        async with link, asyncio.timeout(60):
            while "does not match" not in caplog.text:  # noqa: ASYNC110 - its log
                await asyncio.sleep(0.01)
            assert not link.connected
