"""A server with the interface of `orchgpu web` over generated data, in a thread of the tests.

The scale test needs 10,000 devices and 100,000 jobs, which no real system on a test machine has.
Everything that a view shows of a real system is tested against the real one.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler

from benchmarks.scale.generated import ENDED, FUNCTIONS, GeneratedSystem, Json
from orchgpu.web.http.security import CONTENT_SECURITY_POLICY
from tests.browser.fixture_runs import WORKFLOW, runs, story

ASSETS = Path(__file__).resolve().parents[2] / "orchgpu" / "web" / "assets"
HEADERS = {"Content-Security-Policy": CONTENT_SECURITY_POLICY, "X-Content-Type-Options": "nosniff"}

EMPTY: Json = {"items": [], "next": None, "total": 0}
COST: Json = {
    "ran_s": 5.8,
    "memory_mib": 512,
    "function_usd": 0.000048,
    "device_usd": 0.000812,
    "total_usd": 0.00086,
    "sharers": [{"sharers": 1, "total_usd": 0.00086}, {"sharers": 4, "total_usd": 0.000251}],
}


def _item(name: str, value: object, meaning: str = "", *, overridden: bool = False) -> Json:
    found: Json = {"name": name, "value": value, "meaning": meaning, "overridden": overridden}
    return found | {"choices": []}


SETTINGS: Json = {
    "policies": [_item("policy", "fifo"), _item("policy.fifo.patience_s", 5.0, "for a warm start")],
    "parameters": [
        _item("aging_s", 120.0, overridden=True),
        _item("lease_s_max", 604800.0),
        _item("rate_per_s", None),
    ],
    "quotas": [_item("weight.vision", 2.0), _item("quota.speech.devices", 4)],
    "installed": [
        {"name": name, "summary": summary, "wait_bound": bound, "starves": ""}
        for name, summary, bound in (
            ("fifo", "the request that waits longest", "every request is served in order"),
            ("sticky", "a request whose workload is loaded", "patience_s, then fifo"),
        )
    ],
    "drained": [],
}


def pools(now_s: float) -> Json:
    """A pool with a host that starts, and one that starts none."""
    pool = {"model": "NVIDIA A10G", "min": 0, "max": 4, "usd_per_h": 1.01, "start_s": 110.0}
    coming = {"pool": "a10g", "hosts": 2, "size": 2, "states": {"busy": 1, "starting": 1}}
    full = {"pool": "a10g-spot", "hosts": 4, "size": 4, "states": {"busy": 4}}
    return {
        "pools": [
            {**pool, **coming, "spot": False, "expected_s": now_s + 70, "closed": ""},
            {**pool, **full, "spot": True, "expected_s": None, "closed": "its max of 4 is reached"},
        ],
        "notices": ["the hosts cost 6.06 USD/h, of at most 7 (usd_per_hour_max)"],
    }


class FixtureServer:
    """Answers of the console's server, and a stream of changes that a test controls."""

    def __init__(self, system: GeneratedSystem, role: str = "operator") -> None:
        self.system = system
        self.role = role
        self.address = ""
        self._streams: set[asyncio.Queue[bytes | None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._position = 0
        self.resumed: list[str | None] = []  #: position of each opened stream
        self.changes: list[tuple[str, str]] = []  #: of jobs, with their ids

    def application(self) -> web.Application:
        """The routes of the page and of its interface."""
        app = web.Application(middlewares=[_with_headers])
        app.add_routes(
            [
                web.get("/", self._page),
                web.static("/assets", ASSETS),
                web.get("/api/session", self._session),
                web.get("/api/events", self._events),
                web.get("/api/overview", _answering(self.system.overview)),
                web.get("/api/fleet", self._fleet),
                web.get("/api/fleet/summary", self._summary),
                web.get("/api/fleet/pools", _answering(lambda: pools(time.time()))),
                web.get("/api/queue", self._queue),
                web.get("/api/jobs", self._jobs),
                web.get("/api/jobs/{job}", self._job),
                web.post("/api/jobs/{job}/{change}", self._change),
                web.get("/api/jobs/{job}/logs", self._logs),
                web.get("/api/jobs/{job}/outputs", self._outputs),
                web.get("/api/jobs/{job}/outputs/{number}", self._output),
                web.get("/api/jobs/{job}/cost", _answering(lambda: COST)),
                web.get("/api/letters", _answering(lambda: EMPTY)),
                web.get("/api/functions", self._functions),
                web.get("/api/functions/{name}", self._function),
                web.get("/api/workflows/{name}/runs", _answering(lambda: runs(time.time()))),
                web.get("/api/runs/{run}", self._run),
                web.post("/api/runs/{job}/{change}", self._change),
                web.get("/api/activity", self._activity),
                web.get("/api/settings", self._settings),
            ]
        )
        return app

    # ------------------------------------------------------------------ the stream

    def publish(self, changes: Sequence[Json]) -> str:
        """Send changes to every open page, from the thread of a test; returns their position."""
        self._position += 1
        data = json.dumps(list(changes))
        position = f"run-{self._position}"
        text = f"id: {position}\nevent: changes\ndata: {data}\n\n".encode()
        self._send(text)
        return position

    def cut(self) -> None:
        """End every open stream, as the end of the server's process would."""
        self._send(None)

    def _send(self, piece: bytes | None) -> None:
        assert self._loop is not None
        for queue in tuple(self._streams):
            self._loop.call_soon_threadsafe(queue.put_nowait, piece)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        self.resumed.append(request.headers.get("Last-Event-ID"))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"} | HEADERS)
        await response.prepare(request)
        await response.write(b": open\n\n")
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._streams.add(queue)
        try:  # a closed page cancels the handler, or ends a write
            while (piece := await queue.get()) is not None:
                await response.write(piece)
        except ConnectionResetError:
            pass
        finally:
            self._streams.discard(queue)
        return response

    # ------------------------------------------------------------------ answers

    async def _page(self, _request: web.Request) -> web.StreamResponse:
        return web.FileResponse(ASSETS / "index.html")

    async def _session(self, _request: web.Request) -> web.Response:
        found = {"role": self.role, "name": "fixture", "csrf": "token", "scheduler": "fixture:0"}
        return await _json(found | {"version": "0.1.0", "login_needed": False, "keys": True})

    async def _fleet(self, request: web.Request) -> web.Response:
        numbers: Sequence[int] = range(self.system.hosts)
        if "host" in request.query:
            numbers = [int(request.query["host"].removeprefix("gpu"))]
        return await _paged(request, numbers, self.system.host)

    async def _summary(self, request: web.Request) -> web.Response:
        return await _paged(request, range(self.system.hosts), self.system.summary)

    async def _queue(self, request: web.Request) -> web.Response:
        return await _paged(request, range(self.system.waiting), self.system.queued)

    async def _jobs(self, request: web.Request) -> web.Response:
        numbers: Sequence[int] = range(self.system.jobs)
        state, text = request.query.get("state"), request.query.get("q", "")
        if state == "live":
            numbers = [one for one in numbers if self.system.state(one) not in ENDED]
        elif state:
            numbers = [one for one in numbers if self.system.state(one) == state]
        if text:
            numbers = [one for one in numbers if text in self.system.key.format(one)]
        return await _paged(request, numbers, self.system.job)

    def _number(self, request: web.Request) -> int:
        job = request.match_info["job"]
        return next(one for one in range(self.system.jobs) if self.system.job_id(one) == job)

    async def _job(self, request: web.Request) -> web.Response:
        return await _json(self.system.story(self._number(request), may_change=self._may_change))

    @property
    def _may_change(self) -> bool:
        return self.role != "reader"

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"} | HEADERS)
        await response.prepare(request)
        with suppress(ConnectionResetError):  # the page was closed
            for line in self.system.log_lines(2000):
                await response.write(f"event: line\ndata: {json.dumps(line)}\n\n".encode())
            await response.write(b"event: end\ndata: {}\n\n")
        return response

    async def _change(self, request: web.Request) -> web.Response:
        self.changes.append((request.match_info["change"], request.match_info["job"]))
        return await _json({})

    async def _outputs(self, _request: web.Request) -> web.Response:
        items = [
            {"name": "boxes.json", "bytes": 1834, "type": "application/json", "preview": "text"},
            {"name": "drawn.svg", "bytes": 512, "type": "image/svg+xml", "preview": "image"},
            {"name": "model.bin", "bytes": 48_000_000, "type": "application/octet-stream"},
        ]
        return await _json({"items": items})

    async def _output(self, request: web.Request) -> web.StreamResponse:
        if request.match_info["number"] == "1":
            return web.FileResponse(ASSETS / "icon.svg")
        return web.Response(
            text=json.dumps({"boxes": [[12, 40, 88, 120]], "label": ["dog"]}, indent=2)
        )

    async def _functions(self, _request: web.Request) -> web.Response:
        return await _json({"items": [self.system.function(name) for name in FUNCTIONS]})

    async def _function(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        rights = {"may_upload": self._may_change, "may_roll_back": self.role == "operator"}
        found = self.system.function(name) | self.system.workflow(name) | rights
        return await _json({**found, "workflow": WORKFLOW if name == FUNCTIONS[0] else None})

    async def _run(self, request: web.Request) -> web.Response:
        run = request.match_info["run"]
        return await _json(story(run, time.time(), may_change=self._may_change))

    async def _activity(self, request: web.Request) -> web.Response:
        return await _json(self.system.activity(float(request.query.get("since_s", "3600"))))

    async def _settings(self, _request: web.Request) -> web.Response:
        return await _json(SETTINGS | {"may_change": self.role == "operator"})


@web.middleware
async def _with_headers(request: web.Request, handler: Handler) -> web.StreamResponse:
    response = await handler(request)
    if not response.prepared:
        response.headers.update(HEADERS)
    return response


def _answering(found: Callable[[], object]) -> Handler:
    async def handler(_request: web.Request) -> web.StreamResponse:
        return await _json(found())

    return handler


async def _json(found: object) -> web.Response:
    return web.json_response(found)


async def _paged(
    request: web.Request, numbers: Sequence[int], item: Callable[[int], Json]
) -> web.Response:
    limit, after = int(request.query.get("limit", "50")), int(request.query.get("after", "0"))
    page = [item(one) for one in islice(numbers, after, after + limit)]
    more = after + limit < len(numbers)
    return await _json(
        {"items": page, "next": str(after + limit) if more else None, "total": len(numbers)}
    )


@contextmanager
def serving(server: FixtureServer) -> Iterator[FixtureServer]:
    """The server on a free port of loopback, in a thread with a loop of its own."""
    started = threading.Event()
    ending: list[asyncio.Event] = []

    async def serve() -> None:
        runner = web.AppRunner(server.application(), shutdown_timeout=1, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        server.address = f"http://127.0.0.1:{port}/"
        server._loop = asyncio.get_running_loop()
        ending.append(asyncio.Event())
        started.set()
        await ending[0].wait()
        await runner.cleanup()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="fixture-server")
    thread.start()
    assert started.wait(10)
    try:
        yield server
    finally:
        assert server._loop is not None
        server.cut()
        server._loop.call_soon_threadsafe(ending[0].set)
        thread.join()


if __name__ == "__main__":
    # for work on the page: python -m tests.browser.fixture_server
    large = GeneratedSystem(hosts=1250, devices_per_host=8, jobs=100_000, now_s=time.time())
    with serving(FixtureServer(large)) as running:
        print(running.address)  # noqa: T201
        threading.Event().wait()
