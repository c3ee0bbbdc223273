"""The web console's server at 10,000 devices and 100,000 jobs.

The console runs in this process, over an ssgmd of its own process with that system in its journal
(`benchmarks.scale.scheduler`) and a history of the same jobs. Its own rounds go on meanwhile: the
answers of a second, in turns with those of a bare server, have the median of both states.

    start_s               from the start of the console until its picture is whole; compared with
                          its client alone, which reads the same pages and keeps nothing
    memory_mib            what the process grew by with the picture; memory_kib_per_job
    events_per_s          changed job records that it takes in: decoded, and put into the picture;
                          compared with json.loads of the same lines
    …_page_ms             a page of 200 jobs, one of failed jobs, of 200 hosts, of 200 summaries of
                          hosts, of the queue; compared with an answer of the same bytes by aiohttp
    search_…_ms           all requests of a search for one job among all, by id, by key, by function
    activity_…_ms         devices and series of an hour and of a day, out of the history
    …_json_ms             json.dumps of the same answer

    python -m benchmarks.console [--json] [--hosts N] [--jobs N] [--seconds S]
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from urllib.parse import quote

import aiohttp
from aiohttp import web

from benchmarks import report
from benchmarks.history import inventory
from benchmarks.measure import resident_mib, seconds, seconds_of
from benchmarks.scale import scheduler, values
from benchmarks.scale.generated import FUNCTIONS, GeneratedSystem
from corekit.aio.clock import SystemClock
from corekit.budget import Budget
from corekit.cli.progress import Bar
from corekit.decode import encode_json
from corekit.values import replace
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.client.access import Access
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import RecordPush
from gpu_scheduler.protocol.codec import Body
from orchgpu.history.consumer import BATCH_MAX
from orchgpu.history.store import Batch, Store
from orchgpu.web.app import running
from orchgpu.web.console import Console, ConsoleSettings
from orchgpu.web.doors import SchedulerDoor
from orchgpu.web.model.picture import Picture
from orchgpu.web.reader import PAGE, PictureReader

STARTED_WITHIN_S = 300.0
EVENTS = 5_000  #: changes that are taken in together
_BARE = "the same bytes by aiohttp alone, ms"


@dataclass(frozen=True, slots=True)
class Browser:
    """A client of the console, and of a bare server beside it."""

    http: aiohttp.ClientSession
    console: str
    bare: str
    seconds: float  #: of each answer

    async def get(self, path: str) -> bytes:
        async with self.http.get(f"{self.console}/api/{path}") as answer:
            text = await answer.read()
            assert answer.status == 200, text
            return text

    async def figures(self, name: str, path: str) -> list[report.Figure]:
        """The time of a path, of the same bytes without the console, and of JSON alone."""
        text = await self.get(path.format(n=0))
        value = json.loads(text)
        ours_s: list[float] = []
        bare_s: list[float] = []
        end_s = time.perf_counter() + self.seconds
        while time.perf_counter() < end_s:
            one = path.format(n=len(ours_s) + 1)
            ours_s.append(await seconds_of(partial(self.get, one)))
            bare_s.append(await self._bare_s(len(text)))
        json_s = seconds(lambda: json.dumps(value), 5)
        ours, bare = statistics.median(ours_s), statistics.median(bare_s)
        return [
            report.compared(f"{name}_ms", 1000 * ours, "ms", _BARE, 1000 * bare),
            report.Figure(f"{name}_json_ms", 1000 * json_s, f"ms for {len(text) // 1024} KiB"),
        ]

    async def search(self, name: str, text: str, found: int) -> report.Figure:
        """All requests of a search, one after the other."""
        pages: list[bytes] = []
        began_s = time.perf_counter()
        after = ""
        while True:
            pages.append(await self.get(f"jobs?limit=200&q={quote(text)}{after}"))
            page = json.loads(pages[-1])
            if page["next"] is None:
                break
            after = f"&after={quote(page['next'])}"
        took_s = time.perf_counter() - began_s
        items = sum(len(json.loads(one)["items"]) for one in pages)
        assert items >= found, f"{name}: {items} jobs"
        bare_s = sum([await self._bare_s(len(one)) for one in pages])
        requests = f"{_BARE} ({len(pages)} requests)"
        return report.compared(f"{name}_ms", 1000 * took_s, "ms", requests, 1000 * bare_s)

    async def _bare_s(self, size: int) -> float:
        async def get() -> None:
            async with self.http.get(f"{self.bare}/{size}") as answer:
                assert len(await answer.read()) == size

        return await seconds_of(get)


@asynccontextmanager
async def bare_server() -> AsyncIterator[str]:
    """A server of nothing: `/N` answers N bytes."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=b"x" * int(request.match_info["size"]))

    app = web.Application()
    app.router.add_get("/{size}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def read_alone_s(address: str) -> float:
    """Seconds to read all pages that a console reads first, with its client."""
    async with SchedulerClient(address) as client:
        began_s = time.perf_counter()
        fence, more = 0, True
        while more:
            leases = await client.ask(ops.Leases(after=fence, limit=PAGE))
            fence, more = leases.leases[-1].fence, leases.more
        host, more = None, True
        while more:
            found = await client.ask(ops.Inventory(after=host, limit=PAGE))
            host, more = found.hosts[-1].host, found.more
        after = None
        while page := (await client.ask(ops.Records(after=after))).records:
            after = page[-1].holder
        return time.perf_counter() - began_s


async def whole(console: Console, system: GeneratedSystem) -> None:
    """Return when the picture has everything."""
    async with asyncio.timeout(STARTED_WITHIN_S):
        while not console.picture.connected or len(console.picture.jobs) < system.jobs:
            await asyncio.sleep(0.02)


def events(system: GeneratedSystem, rounds: int) -> report.Figure:
    """Changes that the console takes in; each round changes every record."""
    picture = Picture("benchmark")
    reader = PictureReader(picture, SystemClock())
    records = list(islice(values.ended_records(system), EVENTS))
    ours_s = bare_s = 0.0
    for number in range(rounds):
        changed = [replace(one, updated_s=one.updated_s + number) for one in records]
        lines = [encode_json(RecordPush(holder=one.holder, record=one)) for one in changed]
        began_s = time.perf_counter()
        for line in lines:
            reader.take(Body(line).read_known(RecordPush)[0])
        picture.batches.close()
        between_s = time.perf_counter()
        for line in lines:
            json.loads(line)
        ours_s += between_s - began_s
        bare_s += time.perf_counter() - between_s
    count = len(records) * rounds
    return report.compared(
        "events_per_s", count / ours_s, "1/s", "json.loads alone, 1/s", count / bare_s
    )


def history(path: Path, system: GeneratedSystem) -> None:
    """The history of the ended jobs."""
    with Store(path) as store:
        store.write(inventory(system))
        records = list(values.ended_records(system))
        for start in range(0, len(records), BATCH_MAX):
            store.write(Batch(records=records[start : start + BATCH_MAX]))


async def answers(browser: Browser, system: GeneratedSystem, bar: Bar) -> list[report.Figure]:
    """The figures of all answers."""
    found: list[report.Figure] = []
    pages = {
        "jobs_page": "jobs?limit=200",
        "failed_jobs_page": "jobs?limit=200&state=FAILED",
        "fleet_page": "fleet?limit=200",
        "summary_page": "fleet/summary?limit=200",
        "queue_page": "queue?limit=200",
        "activity_1h": "activity?since_s=3600.1{n:06}",  # another one each time: none is kept
        "activity_1d": "activity?since_s=86400.1{n:06}",
    }
    for number, (name, path) in enumerate(pages.items()):
        found += await browser.figures(name, path)
        bar.draw(3 + number, name)
    oldest = next(n for n in reversed(range(system.jobs)) if system.state(n) == "SUCCEEDED")
    searches = {
        "search_id": (system.job_id(oldest), 1),
        "search_key": (system.key.format(oldest), 1),
        "search_function": (FUNCTIONS[0], system.jobs // len(FUNCTIONS)),
    }
    for number, (name, (text, least)) in enumerate(searches.items()):
        found.append(await browser.search(name, text, least))
        bar.draw(3 + len(pages) + number, name)
    return found


async def measured(
    address: str, store: Path, system: GeneratedSystem, seconds_each: float, bar: Bar
) -> list[report.Figure]:
    """The figures of one console."""
    settings = ConsoleSettings(scheduler=address, listen="127.0.0.1:0", history=store)
    door = SchedulerDoor(address=address, access=Access(), budget=Budget())
    before_mib, began_s = resident_mib(), time.perf_counter()
    async with AsyncExitStack() as stack:
        console, place = await stack.enter_async_context(running(settings, door, False))
        await whole(console, system)
        took_s = time.perf_counter() - began_s
        grown_mib = resident_mib() - before_mib
        bar.draw(2, "started")
        bare = await stack.enter_async_context(bare_server())
        cookies = aiohttp.CookieJar(unsafe=True)  # of an address without a name
        http = await stack.enter_async_context(aiohttp.ClientSession(cookie_jar=cookies))
        browser = Browser(http, f"http://{place}", bare, seconds_each)
        await browser.get("session")
        found = [
            report.Figure("memory_mib", grown_mib, "MiB"),
            report.Figure("memory_kib_per_job", grown_mib * 1024 / system.jobs, "KiB"),
            events(system, 4),
            *await answers(browser, system, bar),
        ]
    alone_s = await read_alone_s(address)
    return [report.compared("start_s", took_s, "s", "its client alone, s", alone_s), *found]


def main() -> None:
    """Measure and show."""
    parser = report.arguments(__doc__)
    scheduler.sizes(parser)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each answer")
    options = parser.parse_args()
    system = values.large(time.time(), options.hosts, options.jobs)
    bar = Bar(13, quiet=options.json)
    with tempfile.TemporaryDirectory(prefix="console-") as name:
        folder = Path(name)
        make = multiprocessing.get_context("spawn").Process(
            target=history, args=(folder / "history.sqlite", system)
        )
        make.start()  # its memory is not this process's
        make.join()
        assert make.exitcode == 0
        bar.draw(1, "history")
        with scheduler.running(folder, options.hosts, options.jobs) as found:
            figures = asyncio.run(
                measured(found["socket"], folder / "history.sqlite", system, options.seconds, bar)
            )
    bar.clear()
    report.show("console", figures, as_json=options.json)


if __name__ == "__main__":
    main()
