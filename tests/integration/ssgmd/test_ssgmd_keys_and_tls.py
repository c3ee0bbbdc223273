"""Both endpoints with keys and TLS: a caller without a valid key is refused with the reason."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import logging
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from corekit.errors import AppError, ErrorCode
from corekit.ids import HostId, JobId, LeaseId, SessionId
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.client.access import CA_VARIABLE, KEY_FILE_VARIABLE, Access
from gpu_scheduler.daemon.access.keys import NAME, KeyEntry, KeyRole, add_key, revoke_key
from gpu_scheduler.daemon.access.sources import FileSecret
from gpu_scheduler.daemon.access.tls import Certificate
from gpu_scheduler.model import Request
from gpu_scheduler.monitor.link import HostLink
from gpu_scheduler.monitor.probes import FileProbe
from gpu_scheduler.monitor.watched import WatchedHost
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.keys import new_key
from orchgpu.local.home import Home
from orchgpu.local.stack import StackRecord, keep_stack
from tests.commandline import done
from tests.host_hello import host_hello
from tests.integration.ssgmd.conftest import BUDGET, Endpoints, serving

DEVICE = {"id": "gpu-a/0", "index": 0, "kind": "cuda", "model": "M", "memory_mib": 1000}
HELLO = host_hello(host="gpu-a", devices=[DEVICE])


def added(state: Path, name: str, role: KeyRole, **bound: Any) -> str:
    return add_key(state / NAME, KeyEntry(name=name, role=role, sha256="0" * 64, **bound))


def issued(folder: Path, name: str) -> Certificate:
    """A certificate of 127.0.0.1 by an authority of its own, `ca.pem` beside it."""
    now = datetime.datetime.now(datetime.UTC)
    ca_key, key = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    authority = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ca")])
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ssgmd")])

    def certificate(of: x509.Name, public: Any, *extensions: x509.ExtensionType) -> bytes:
        builder = x509.CertificateBuilder().subject_name(of).issuer_name(authority)
        builder = builder.public_key(public).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(days=1))
        builder = builder.not_valid_after(now + datetime.timedelta(days=1))
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(ca_key, None).public_bytes(serialization.Encoding.PEM)

    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signs = x509.BasicConstraints(ca=True, path_length=None)
    (folder / "ca.pem").write_bytes(certificate(authority, ca_key.public_key(), signs))
    pem, secret = folder / f"{name}.pem", folder / f"{name}.key"
    pem.write_bytes(certificate(subject, key.public_key(), address))
    secret.touch(mode=0o600)
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return Certificate(pem, secret)


@dataclass(frozen=True)
class Roles:
    """A daemon with TLS, a key of each role, and a client or host with each of them."""

    endpoints: Endpoints
    keys: Mapping[KeyRole, str]
    requester: SchedulerClient
    reader: SchedulerClient

    async def lease(self) -> LeaseId:
        granted = (await self.requester.reserve("a", Request(), wait=False)).granted
        assert granted is not None
        return granted.lease.id


@pytest_asyncio.fixture
async def roles(tmp_path: Path) -> AsyncIterator[Roles]:
    state = tmp_path / "state"
    keys = {role: added(state, role.value, role) for role in KeyRole}
    ca, devices = tmp_path / "ca.pem", tmp_path / "devices.yaml"
    devices.write_text("devices: [{kind: cuda, model: M, memory_mib: 1000}]")
    access = {role: Access(key=key, ca=ca) for role, key in keys.items()}
    async with serving(state, certificate=issued(tmp_path, "a")) as endpoints:
        address = endpoints.daemon.socket
        async with (
            HostLink(
                address,
                host="gpu-a",
                control=WatchedHost(),
                gateway="127.0.0.1:1",
                probe=FileProbe(devices, "gpu-a"),
                budget=BUDGET,
                access=access[KeyRole.HOST],
            ) as link,
            SchedulerClient(address, budget=BUDGET, access=access[KeyRole.REQUESTER]) as requester,
            SchedulerClient(address, budget=BUDGET, access=access[KeyRole.READER]) as reader,
        ):
            await asyncio.wait_for(link.registered(), 20)
            yield Roles(endpoints, keys, requester, reader)


@pytest.mark.asyncio
async def test_a_session_carries_the_name_of_its_key(roles: Roles) -> None:
    job = await roles.requester.ask(
        ops.Attempt(holder=JobId("job"), n=1, revision=0, request=Request())
    )
    assert job.record is not None
    assert job.record.owner == roles.requester.session
    assert roles.requester.session.startswith("requester/")


@pytest.mark.asyncio
async def test_a_requester_may_transfer_its_lease_and_a_reader_sees_it(roles: Roles) -> None:
    lease = await roles.lease()
    op = ops.Transfer(lease=LeaseId(lease), to=SessionId("other"))
    assert (await roles.requester.ask(op)).lease.id == lease
    assert [seen.id for seen in await roles.reader.leases()] == [lease]


@pytest.mark.asyncio
async def test_an_op_above_the_role_is_denied_at_the_socket_endpoint(roles: Roles) -> None:
    for refused in (
        roles.reader.release(await roles.lease()),
        roles.requester.ask(ops.Drain(host=HostId("gpu-a"))),
    ):
        with pytest.raises(AppError, match="has role") as caught:
            await refused
        assert caught.value.code is ErrorCode.DENIED


@pytest.mark.asyncio
@pytest.mark.parametrize(("role", "status"), [(KeyRole.READER, 403), (KeyRole.OPERATOR, 200)])
async def test_a_lease_is_ended_by_an_operator_at_the_http_endpoint(
    roles: Roles, role: KeyRole, status: int
) -> None:
    path = f"/v1/leases/{await roles.lease()}"
    answer = await roles.endpoints.ask("DELETE", path, key=roles.keys[role])
    assert answer.status == status


@pytest.mark.asyncio
@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/v1/openapi.json"])
async def test_health_and_description_need_no_key(roles: Roles, path: str) -> None:
    assert (await roles.endpoints.ask("GET", path)).status == 200


@pytest.mark.asyncio
@pytest.mark.parametrize("path", ["/metrics", "/v1/watch", "/v1/leases"])
async def test_every_other_path_needs_a_known_key(roles: Roles, path: str) -> None:
    assert (await roles.endpoints.ask("GET", path)).status == 401
    unknown = await roles.endpoints.ask("GET", path, key=new_key("nobody"))
    assert (unknown.status, unknown.headers["WWW-Authenticate"]) == (401, "Bearer")


@pytest.mark.asyncio
async def test_a_reader_reads_the_metrics(roles: Roles) -> None:
    answer = await roles.endpoints.ask("GET", "/metrics", key=roles.keys[KeyRole.READER])
    assert answer.status == 200


@pytest.mark.asyncio
async def test_no_secret_of_a_key_is_logged(roles: Roles, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for key in roles.keys.values():
        await roles.endpoints.ask("GET", "/v1/leases", key=key)
        async with roles.endpoints.peer() as peer:
            await peer.hello(key=key)
    await roles.lease()
    assert not [key for key in roles.keys.values() if key.partition(".")[2] in caplog.text]


@pytest.mark.asyncio
async def test_a_lease_belongs_to_its_key_at_both_endpoints(tmp_path: Path) -> None:
    a, b = (added(tmp_path, name, KeyRole.REQUESTER) for name in "ab")
    host_key = added(tmp_path, "h", KeyRole.HOST, host="gpu-a")
    async with (
        serving(tmp_path) as endpoints,
        endpoints.peer() as host,
        endpoints.peer() as stranger,
    ):
        wrong = await host.ask(op="hello", key=host_key, **{**HELLO, "host": "gpu-b"})
        assert "not to 'gpu-b'" in wrong["error"]["message"]
        assert (await host.ask(op="beat"))["error"]["code"] == "invalid", "nobody was welcomed"
        assert "ok" in await host.ask(op="hello", key=host_key, **HELLO)
        body = {"attempt": "x", "request": {"memory_mib": 10}}
        granted = (await endpoints.ask("POST", "/v1/reserve", body, key=a)).value["granted"]
        lease = granted["lease"]["id"]
        assert (await endpoints.ask("GET", f"/v1/leases/{lease}", key=b)).status == 200, "may look"
        answer = await endpoints.ask("DELETE", f"/v1/leases/{lease}", key=b)
        assert (answer.status, answer.value["error"]["details"]) == (403, {"needs": "owner"})
        assert "ok" in await stranger.hello(session="a/http", key=b)
        for op in ("release", "renew"):
            answer = await stranger.ask(op=op, lease=lease)
            assert answer["error"]["code"] == "denied"
        again = await endpoints.ask("POST", "/v1/reserve", body, key=b)
        assert (again.status, again.value["error"]["code"]) == (409, "conflict")
        assert (await endpoints.ask("DELETE", f"/v1/leases/{lease}", key=a)).status == 200


@pytest.mark.asyncio
async def test_a_job_is_ended_by_its_own_key_its_tenants_or_an_operators(tmp_path: Path) -> None:
    a, b = (added(tmp_path, name, KeyRole.REQUESTER) for name in "ab")
    lab1, lab2 = (added(tmp_path, n, KeyRole.REQUESTER, tenant="lab") for n in ("lab1", "lab2"))
    operator = added(tmp_path, "o", KeyRole.OPERATOR)
    host_key = added(tmp_path, "h", KeyRole.HOST, host="gpu-a")
    async with serving(tmp_path) as endpoints, endpoints.peer() as host:
        assert "ok" in await host.ask(op="hello", key=host_key, **HELLO)
        for owner, tenant, strangers, friend in (
            (a, "default", (b, lab1), operator),
            (lab1, "lab", (a, b), lab2),
        ):
            job = f"job-of-{tenant}"
            asked = {"memory_mib": 10, "tenant": tenant}
            body = {"holder": job, "n": 1, "revision": 0, "request": asked}
            granted = (await endpoints.ask("POST", "/v1/attempt", body, key=owner)).value["granted"]
            end = {"holder": job, "outcome": "FAILED", "reason": "R"}
            for stranger in strangers:
                answer = await endpoints.ask("POST", "/v1/finish", end, key=stranger)
                assert (answer.status, answer.value["error"]["details"]) == (
                    403,
                    {"needs": "owner"},
                )
            lease = f"/v1/leases/{granted['lease']['id']}"
            assert (await endpoints.ask("GET", lease, key=owner)).status == 200, "it goes on"
            assert (await endpoints.ask("POST", "/v1/finish", end, key=friend)).status == 200
            assert (await endpoints.ask("POST", "/v1/finish", end, key=owner)).status == 200, (
                "again"
            )


@pytest.mark.asyncio
async def test_a_job_handed_back_stays_its_keys_over_a_restart(tmp_path: Path) -> None:
    a, b = (added(tmp_path, name, KeyRole.REQUESTER) for name in "ab")
    host_key = added(tmp_path, "h", KeyRole.HOST, host="gpu-a")
    body = {"holder": "j", "n": 1, "revision": 0, "request": {"memory_mib": 10}}
    async with serving(tmp_path) as endpoints, endpoints.peer() as host:
        assert "ok" in await host.ask(op="hello", key=host_key, **HELLO)
        record = (await endpoints.ask("POST", "/v1/attempt", body, key=a)).value["record"]
        back = {"holder": "j", "revision": record["revision"]}
        record = (await endpoints.ask("POST", "/v1/hand_back", back, key=a)).value["record"]
        assert record["owner"] is None
    async with serving(tmp_path) as endpoints:
        mine = {"holder": "j", "revision": record["revision"]}
        for op in ("adopt", "reopen"):
            answer = await endpoints.ask("POST", f"/v1/{op}", {**mine, "handle": ""}, key=b)
            assert (answer.status, answer.value["error"]["details"]) == (403, {"needs": "owner"})
        orphans = [
            (await endpoints.ask("GET", "/v1/orphans", key=key)).value["records"] for key in (a, b)
        ]
        assert [[one["holder"] for one in page] for page in orphans] == [["j"], []]
        taken = await endpoints.ask("POST", "/v1/adopt", mine, key=a)
        assert taken.value["record"]["owner"] == "a/http"


@pytest.mark.asyncio
async def test_revoking_a_key_and_making_the_first_one_close_connections(tmp_path: Path) -> None:
    async with serving(tmp_path) as endpoints, endpoints.peer() as early:
        assert "ok" in await early.hello()
        key = added(tmp_path, "a", KeyRole.READER)
        endpoints.daemon.reread.set()
        assert await early.next() is None, "who came without a key is let out"
        async with endpoints.peer() as late, endpoints.peer() as without:
            assert "ok" in await late.hello(key=key)
            assert (await without.hello())["error"]["details"] == {"needs": "key"}
            revoke_key(tmp_path / NAME, "a")
            os.utime(tmp_path / NAME, ns=(1, 1))
            endpoints.daemon.reread.set()
            assert await late.next() is None


async def why_not(client: SchedulerClient) -> str:
    """The error of a client after its first try to connect."""
    while True:
        with pytest.raises(AppError) as caught:
            await client.leases()
        if "is ssgmd up" not in caught.value.message:
            return caught.value.message


@pytest.mark.asyncio
async def test_a_client_that_trusts_another_authority_hears_why_at_once(tmp_path: Path) -> None:
    state, other = tmp_path / "state", tmp_path / "other"
    other.mkdir()
    issued(other, "b")
    async with serving(state, certificate=issued(tmp_path, "a")) as endpoints:
        address = endpoints.daemon.socket
        async with SchedulerClient(
            address, budget=BUDGET, deadline_s=20, access=Access(ca=other / "ca.pem")
        ) as client:
            with pytest.raises(AppError, match="certificate") as caught:
                await client.leases()
            assert caught.value.code is ErrorCode.DENIED
        async with SchedulerClient(address, budget=BUDGET, deadline_s=0.3) as plain:
            assert "broke off before its welcome" in await why_not(plain)
    async with serving(tmp_path / "plain") as endpoints:
        access = Access(ca=tmp_path / "ca.pem")
        async with SchedulerClient(
            endpoints.daemon.socket, budget=BUDGET, deadline_s=0.3, access=access
        ) as client:
            assert "does not speak TLS 1.3" in await why_not(client)


@pytest.mark.asyncio
async def test_a_renewed_certificate_is_for_the_next_connection(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with serving(state, certificate=issued(tmp_path, "a")) as endpoints:
        issued(tmp_path, "a")
        (tmp_path / "a.pem").touch()
        endpoints.daemon.reread.set()
        async with SchedulerClient(
            endpoints.daemon.socket,
            budget=BUDGET,
            deadline_s=20,
            access=Access(ca=tmp_path / "ca.pem"),
        ) as client:
            leases = None
            while leases is None:
                with contextlib.suppress(AppError):  # the daemon has not read it again yet
                    leases = await client.leases()


@pytest.mark.asyncio
@pytest.mark.parametrize("door", ["listen", "http"])
async def test_other_machines_are_let_in_by_key_only(tmp_path: Path, door: str) -> None:
    with pytest.raises(AppError, match="can be reached from other machines") as caught:
        async with serving(tmp_path / "state", **{door: "0.0.0.0:0"}):
            pass
    assert caught.value.code is ErrorCode.DENIED
    added(tmp_path / "state", "a", KeyRole.READER)
    async with serving(tmp_path / "state", **{door: "0.0.0.0:0"}):
        pass


@pytest.mark.asyncio
async def test_a_named_keys_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(AppError, match="ssgmd keys add") as caught:
        async with serving(tmp_path, keys=FileSecret(tmp_path / "none.json")):
            pass
    assert caught.value.code is ErrorCode.NOT_FOUND


@pytest.mark.asyncio
async def test_a_connection_without_a_hello_is_closed(tmp_path: Path) -> None:
    budget = replace(BUDGET, handshake_s=0.1)
    async with serving(tmp_path, budget=budget) as endpoints, endpoints.peer() as peer:
        assert (await peer.next())["error"]["code"] == "timeout"
        assert await peer.next() is None


@pytest.mark.asyncio
async def test_the_stack_that_a_folder_keeps_gives_commands_its_scheduler_and_key(
    roles: Roles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (KEY_FILE_VARIABLE, CA_VARIABLE):  # the command sets them
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    access = tmp_path / "access"
    access.mkdir()
    (access / "operator.key").touch(mode=0o600)
    (access / "operator.key").write_text(roles.keys[KeyRole.OPERATOR])
    (access / "ca.pem").write_bytes((tmp_path / "ca.pem").read_bytes())
    schedulers = roles.endpoints.daemon.socket
    stack = StackRecord(
        name="lab", account="1", region="r", schedulers=schedulers, access=str(access)
    )
    keep_stack(Home(tmp_path / ".orchgpu"), stack)
    shown = await asyncio.to_thread(done, ["gpus"])
    assert shown.exit_code == 0, shown.output
    assert "gpu-a" in shown.stdout
