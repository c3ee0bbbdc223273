"""One console over real HTTP, with a scheduler that has keys and a cloud, all in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import boto3
import pytest
import pytest_asyncio
from yarl import URL

from contract.keys import job_id
from corekit.budget import Budget
from corekit.decode import encode
from gpu_scheduler.client.access import Access
from gpu_scheduler.daemon.access.keys import NAME, KeyEntry, KeyRole, add_key
from gpu_scheduler.model import Request
from local_cloud.server.context import Context
from orchgpu.core.function import Function, Output
from orchgpu.jobs import cancelling
from orchgpu.local.programs import cloud_environment
from orchgpu.web import job_visits
from orchgpu.web.app import running
from orchgpu.web.console import Console, ConsoleSettings
from orchgpu.web.doors import SchedulerDoor
from tests.host_hello import DEVICE, host_hello
from tests.integration.cli.conftest import cloud as cloud  # a fixture
from tests.integration.ssgmd.conftest import BUDGET, Endpoints, Peer, serving

#: Name of a key → its role and tenant. The jobs of these tests are of tenant `lab`.
KEYS: Mapping[str, tuple[KeyRole, str | None]] = {
    "console": (KeyRole.OPERATOR, None),
    "orchestrator": (KeyRole.REQUESTER, "lab"),
    "unbound": (KeyRole.REQUESTER, None),
    "op": (KeyRole.OPERATOR, None),
    "lab": (KeyRole.REQUESTER, "lab"),
    "other": (KeyRole.REQUESTER, "other"),
    "reader": (KeyRole.READER, None),
    "labreader": (KeyRole.READER, "lab"),
    "gpu": (KeyRole.HOST, None),
}
#: A name that is markup where it is not escaped.
MARKUP = "<img src=x onerror=alert(1)>.txt"
STATE = "orchgpu-state-000000000000-us-east-1"


@dataclass
class Browser:
    """One browser: its cookies, its CSRF token, and the answers it gets."""

    http: aiohttp.ClientSession
    url: str
    csrf: str = ""

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any, Mapping[str, str]]:
        """Status, JSON or bytes, and headers of one request; `body` is JSON or bytes."""
        sent = {"X-CSRF-Token": self.csrf, **(headers or {})}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if data is not None and not isinstance(body, bytes):
            sent.setdefault("Content-Type", "application/json")
        url = URL(self.url + path, encoded=True)
        async with self.http.request(method, url, data=data, headers=sent) as answer:
            content = await answer.read()
            is_json = answer.content_type == "application/json"
            return answer.status, json.loads(content) if is_json else content, answer.headers

    async def get(self, path: str) -> Any:
        """The JSON of a GET that must succeed."""
        status, value, _ = await self.ask("GET", path)
        assert status == 200, (path, status, value)
        return value

    async def log_in(self, key: str) -> int:
        """Begin a session; returns the status."""
        status, value, _ = await self.ask("POST", "/api/session", {"key": key})
        self.csrf = value.get("csrf", "")
        return status


@dataclass
class Site:
    """Everything that runs."""

    console: Console
    url: str
    scheduler: Endpoints
    host: Peer
    keys: Mapping[str, str]
    endpoint: str  #: of the cloud
    function: Function
    functions: list[str] = field(default_factory=list)

    @staticmethod
    @contextlib.asynccontextmanager
    async def anonymous(url: str) -> AsyncIterator[Browser]:
        """A new browser."""
        connector = aiohttp.TCPConnector(force_close=True)
        jar = aiohttp.CookieJar(unsafe=True)  # of an address
        async with aiohttp.ClientSession(connector=connector, cookie_jar=jar) as http:
            yield Browser(http, url)

    @contextlib.asynccontextmanager
    async def browser(self, key: str | None = None) -> AsyncIterator[Browser]:
        """A new browser, logged in with the key of that name."""
        async with self.anonymous(self.url) as browser:
            if key is not None:
                assert await browser.log_in(self.keys[key]) == 200
            yield browser

    @contextlib.asynccontextmanager
    async def orchestrator(self, key: str = "orchestrator") -> AsyncIterator[Peer]:
        """A session that acts for jobs, with the key of that name."""
        async with self.scheduler.peer() as peer:
            hello = await peer.hello(session="o", key=self.keys[key])
            assert "ok" in hello, hello
            yield peer

    async def begun(self, peer: Peer, name: str, *, file: str = MARKUP) -> str:
        """A job that the orchestrator opened an attempt for; returns its id."""
        job = job_id("inputs", file, name, "f")
        block = {
            "function": "f",
            "input": {
                "bucket": "inputs",
                "key": file,
                "event_name": "ObjectCreated:Put",
                "event_time": "2026-11-22T10:00:00Z",
                "version_id": None,
                "etag": "e",
                "size": 1,
            },
        }
        answer = await asked(
            peer,
            op="attempt",
            holder=job,
            n=1,
            revision=0,
            handle="no-handle",
            request={"sharing": "exclusive", "tenant": "lab", "kinds": ["cuda"]},
            block=block,
        )
        assert "ok" in answer, answer
        await until(lambda: job_known(self, job))
        return job

    async def cloud(self, call: Callable[[Any], Any], service: str = "s3") -> Any:
        """A call of a client of the cloud, in a thread."""

        def made() -> Any:
            with contextlib.closing(boto3.client(service)) as client:
                return call(client)

        return await asyncio.to_thread(made)


async def asked(peer: Peer, **fields: Any) -> Any:
    """The answer to an op; pushes before it are left out."""
    answer = await peer.ask(**fields)
    while "push" in answer:
        answer = await peer.next()
    return answer


async def job_known(site: Site, job: str) -> bool:
    return site.console.picture.jobs.get(job) is not None


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition, with a generous limit."""
    for _ in range(3000):
        if await condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come to be")


@pytest.fixture(autouse=True)
def _cloud_of_the_site(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in cloud_environment(site.endpoint).items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def outside() -> Iterator[pytest.MonkeyPatch]:
    """Changes of the environment for the whole module."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def site(
    tmp_path_factory: pytest.TempPathFactory, cloud: Context, outside: pytest.MonkeyPatch
) -> AsyncIterator[Site]:
    state: Path = tmp_path_factory.mktemp("site")
    keys = {
        name: add_key(state / NAME, KeyEntry(name=name, role=role, sha256="0" * 64, tenant=tenant))
        for name, (role, tenant) in KEYS.items()
    }
    outside.setattr(cancelling, "FINISHED_WITHIN_S", 0.2)  # no orchestrator finishes jobs here
    outside.setattr(job_visits, "AFTER_END_S", 0.0)
    outside.setattr(job_visits, "ASK_EVERY_S", 0.02)
    budget = Budget()
    async with contextlib.AsyncExitStack() as stack:
        for name, value in cloud_environment(cloud.endpoint).items():
            outside.setenv(name, value)
        function = await asyncio.to_thread(_deployed)
        scheduler = await stack.enter_async_context(
            serving(state, budget=replace(BUDGET, keys_poll_s=0.05))
        )
        host = await stack.enter_async_context(scheduler.peer())
        devices = [DEVICE, {**DEVICE, "id": "h/1", "index": 1, "model": "<b>M</b>"}]
        assert "ok" in await host.ask(op="hello", key=keys["gpu"], **host_hello(devices=devices))
        door = SchedulerDoor(
            address=scheduler.daemon.socket, access=Access(key=keys["console"]), budget=budget
        )
        settings = ConsoleSettings(
            scheduler=door.address,
            events=scheduler.daemon.http,
            listen="127.0.0.1:0",
            access=door.access,
            history=state / "history.sqlite",
        )
        console, address = await stack.enter_async_context(running(settings, door, True))
        connected = console.cloud.ask("test", lambda one: one.services.state_bucket)
        await connected  # with this cloud
        found = Site(
            console=console,
            url=f"http://{address}",
            scheduler=scheduler,
            host=host,
            keys=keys,
            endpoint=cloud.endpoint,
            function=function,
        )
        await until(lambda: _has_hosts(found))
        yield found


async def _has_hosts(site: Site) -> bool:
    return site.console.picture.overview().devices == 2


def _deployed() -> Function:
    """A function `f` of tenant `lab`, with buckets and queues; nothing serves it."""
    with contextlib.closing(boto3.client("s3")) as s3, contextlib.closing(boto3.client("sqs")) as q:
        for bucket in (STATE, "inputs", "middle", "outputs"):
            s3.create_bucket(Bucket=bucket)
        versioned = {"Status": "Enabled"}
        s3.put_bucket_versioning(Bucket="inputs", VersioningConfiguration=versioned)
        urls = [q.create_queue(QueueName=name)["QueueUrl"] for name in ("jobs", "dead", "done")]
        function = Function(
            name="f",
            revision="r1",
            queue_url=urls[0],
            dead_letter_url=urls[1],
            completion_url=urls[2],
            input_bucket="inputs",
            intermediate_bucket="middle",
            outputs=(Output(bucket="outputs", prefix="hits"),),
            request=Request(tenant="lab"),
        )
        body = json.dumps(encode(function)).encode()
        s3.put_object(Bucket=STATE, Key="functions/f.json", Body=body)
    return function
