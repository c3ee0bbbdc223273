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

from orchgpu.web.http.security import CONTENT_SECURITY_POLICY
from tests.browser.generated import ENDED, FUNCTIONS, GeneratedSystem, Json

ASSETS = Path(__file__).resolve().parents[2] / "orchgpu" / "web" / "assets"
HEADERS = {"Content-Security-Policy": CONTENT_SECURITY_POLICY, "X-Content-Type-Options": "nosniff"}

EMPTY: Json = {"items": [], "next": None, "total": 0}


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
                web.get("/api/queue", self._queue),
                web.get("/api/jobs", self._jobs),
                web.get("/api/jobs/{job}", self._job),
                web.get("/api/jobs/{job}/logs", self._logs),
                web.get("/api/jobs/{job}/outputs", self._outputs),
                web.get("/api/jobs/{job}/outputs/{number}", self._output),
                web.get("/api/jobs/{job}/cost", _answering(lambda: {"total": None, "parts": {}})),
                web.get("/api/letters", _answering(lambda: EMPTY)),
                web.get("/api/functions", self._functions),
                web.get("/api/functions/{name}", self._function),
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
        number = self._number(request)
        job = self.system.job(number)
        failed = "exit status 1: CUDA error: out of memory" if job["state"] == "FAILED" else None
        more: Json = {"attempts": [], "explain": None, "result": failed and {"text": failed}}
        return await _json(job | more | {"timeline": self.system.timeline(number)})

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"} | HEADERS)
        await response.prepare(request)
        with suppress(ConnectionResetError):  # the page was closed
            for number in range(2000):
                stream = "stderr" if number % 40 == 39 else "stdout"
                line = {"time_s": self.system.now_s + number / 50, "stream": stream}
                line["text"] = f"batch {number}: 16 images, loss {1 / (number + 1):.5f}"
                await response.write(f"id: {number}\ndata: {json.dumps(line)}\n\n".encode())
        return response

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
        items = [
            {
                "name": name,
                "gpu": "cuda, 8 GiB, 25 %",
                "inputs": [f"{name}-in"],
                "outputs": [f"{name}-out"],
                "revision": 4,
                "changed_s": self.system.now_s - 9000,
                "jobs": self.system.jobs // len(FUNCTIONS),
            }
            for name in FUNCTIONS
        ]
        return await _json({"items": items, "next": None, "total": len(items)})

    async def _function(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        nodes = [
            {"id": "in", "kind": "bucket", "label": f"{name}-in"},
            {"id": "q", "kind": "queue", "label": f"{name}-jobs"},
            {"id": "f", "kind": "function", "label": name},
            {"id": "out", "kind": "bucket", "label": f"{name}-out"},
        ]
        edges = [{"from": "in", "to": "q"}, {"from": "q", "to": "f"}, {"from": "f", "to": "out"}]
        definition = {"name": name, "gpu": {"memory": "8 GiB", "compute": "25 %"}}
        revisions = [
            {
                "revision": 4,
                "changed_s": self.system.now_s - 9000,
                "current": True,
                "note": "files",
            },
            {
                "revision": 3,
                "changed_s": self.system.now_s - 90000,
                "current": False,
                "note": "gpu",
            },
        ]
        graph = {"nodes": nodes, "edges": edges}
        return await _json({"definition": definition, "graph": graph, "revisions": revisions})

    async def _activity(self, request: web.Request) -> web.Response:
        return await _json(self.system.activity(float(request.query.get("since_s", "3600"))))

    async def _settings(self, _request: web.Request) -> web.Response:
        return await _json(
            {
                "parameters": [
                    {"name": "lease_s_max", "value": 900, "meaning": "the longest lease"},
                    {
                        "name": "aging_s",
                        "value": 60,
                        "meaning": "waiting time that weighs as one step of priority",
                    },
                ],
                "policies": [
                    {"name": "policy", "value": "fifo", "choices": ["fifo", "backfill", "sticky"]}
                ],
                "quotas": [{"name": "vision", "value": "devices=4"}],
            }
        )


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
