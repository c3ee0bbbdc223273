"""`orchgpu top` at 10,000 devices and 100,000 jobs, without a terminal (Textual's own test driver).

The screen reads an ssgmd of a process of its own with that system in its journal.

    start_s               from the start of the screen until all three tables were read and drawn;
                          compared with its client alone, which makes the same calls
    memory_mib            what the process grew by with the screen and what it has read
    event_us              a changed job record: decoded, and put in its place among the newest;
                          compared with json.loads of the same line
    frame_…_ms            a whole frame of a view of 120 × 40, from the state at hand to its lines:
                          rows, widths, lines; compared with lines of constant text
    key_…_ms              the cursor one row down, and the lines; compared in the same way

    python -m benchmarks.top [--json] [--hosts N] [--jobs N] [--rounds N]
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widgets import Static

from benchmarks import report
from benchmarks.measure import resident_mib, seconds
from benchmarks.scale import scheduler, values
from benchmarks.scale.generated import GeneratedSystem
from corekit.cli.chart import BLOCKS
from corekit.cli.progress import Bar
from corekit.decode import encode_json
from corekit.values import replace
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.client.client import ITEMS_PER_PAGE
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import RecordPush
from gpu_scheduler.protocol.codec import Body
from orchgpu.cli.top.app import TopApp
from orchgpu.cli.top.rows import ViewName
from orchgpu.cli.top.snapshot import ScreenData
from orchgpu.cli.top.table import RowTable
from orchgpu.jobs.live.feed import JOBS_MAX
from orchgpu.jobs.live.records import LiveRecords
from orchgpu.jobs.records import newest_records

COLUMNS, ROWS = 120, 40
STARTED_WITHIN_S = 120.0
EVENTS = 5_000
VIEWS = (ViewName.FLEET, ViewName.QUEUE, ViewName.JOBS)
_BARE = "lines of constant text, ms"


class Constant(App[None]):
    """A screen of text that does not change."""

    def compose(self) -> ComposeResult:
        """One widget."""
        yield Static("\n".join("x" * COLUMNS for _ in range(ROWS)), markup=False)


def lines(app: App[None]) -> int:
    """Draw the lines of the screen as for a terminal; their number."""
    return len(app.screen._compositor.render_strips())  # noqa: SLF001 - no public call draws


async def constant_ms(rounds: int) -> float:
    """The time of a frame that shows constant text."""
    app = Constant()
    async with app.run_test(size=(COLUMNS, ROWS)) as pilot:
        await pilot.pause()
        text = app.query_one(Static)

        def frame() -> None:
            text.update("\n".join("x" * COLUMNS for _ in range(ROWS)))
            lines(app)

        return 1000 * seconds(frame, rounds)


async def read_alone_s(address: str) -> float:
    """Seconds of the calls by which the screen reads its tables."""
    async with SchedulerClient(address) as client:
        began_s = time.perf_counter()
        await client.inventory()
        await client.leases()
        await newest_records(client, JOBS_MAX, scanned_max=JOBS_MAX)
        await client.ask(ops.Queue(limit=ITEMS_PER_PAGE))
        return time.perf_counter() - began_s


def event(system: GeneratedSystem, rounds: int) -> report.Figure:
    """Changes of job records; each round changes every one of them."""
    records = list(islice(values.ended_records(system), EVENTS))
    live, ours_s, bare_s = LiveRecords(JOBS_MAX), 0.0, 0.0
    live.read([], live.readings)
    for number in range(rounds):
        changed = [replace(one, updated_s=one.updated_s + number) for one in records]
        encoded = [encode_json(RecordPush(holder=one.holder, record=one)) for one in changed]
        began_s = time.perf_counter()
        for line in encoded:
            live.change(Body(line).read_known(RecordPush)[0])
        between_s = time.perf_counter()
        for line in encoded:
            json.loads(line)
        ours_s += between_s - began_s
        bare_s += time.perf_counter() - between_s
    count = len(records) * rounds
    against = "json.loads alone, µs"
    return report.compared("event_us", 1e6 * ours_s / count, "µs", against, 1e6 * bare_s / count)


async def until(pilot: Pilot[None], holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(STARTED_WITHIN_S):
        while not holds():
            await pilot.pause(0.01)


async def frames(
    app: TopApp, pilot: Pilot[None], constant: float, rounds: int, bar: Bar
) -> list[report.Figure]:
    """The figures of each view with a table."""
    table, found = app.query_one(RowTable), []

    def frame() -> None:
        app.snapshot = replace(app.snapshot)  # as after a read: its rows are made again
        app.draw()
        lines(app)

    def key() -> None:
        table.action_move(1)
        lines(app)

    for number, view in enumerate(VIEWS):
        app.action_view(view)
        await pilot.pause()
        for name, work in (("frame", frame), ("key", key)):
            took_ms = 1000 * seconds(work, rounds)
            found.append(report.compared(f"{name}_{view}_ms", took_ms, "ms", _BARE, constant))
        bar.draw(2 + number, view)
    return found


async def screen(
    address: str, http: str, system: GeneratedSystem, rounds: int, bar: Bar
) -> list[report.Figure]:
    """The figures of one screen."""
    constant = await constant_ms(rounds)
    before_mib, began_s = resident_mib(), time.perf_counter()
    app = TopApp(address, BLOCKS, http)
    async with app.run_test(size=(COLUMNS, ROWS)) as pilot:
        await until(pilot, lambda: None not in _parts(app.snapshot) or app.failed is not None)
        took_s = time.perf_counter() - began_s
        assert app.failed is None, app.failed
        grown_mib = resident_mib() - before_mib
        bar.draw(1, "started")
        found = [
            report.Figure("memory_mib", grown_mib, "MiB"),
            event(system, 4),
            *await frames(app, pilot, constant, rounds, bar),
        ]
    alone_s = await read_alone_s(address)
    return [report.compared("start_s", took_s, "s", "its client alone, s", alone_s), *found]


def _parts(snapshot: ScreenData) -> tuple[object, ...]:
    return snapshot.hosts, snapshot.queue, snapshot.records


def main() -> None:
    """Measure and show."""
    parser = report.arguments(__doc__)
    scheduler.sizes(parser)
    parser.add_argument("--rounds", type=int, default=11, help="of each frame")
    options = parser.parse_args()
    system = values.large(time.time(), options.hosts, options.jobs)
    bar = Bar(1 + len(VIEWS), quiet=options.json)
    with (
        tempfile.TemporaryDirectory(prefix="top-") as name,
        scheduler.running(Path(name), options.hosts, options.jobs) as found,
    ):
        figures = asyncio.run(screen(found["socket"], found["http"], system, options.rounds, bar))
    bar.clear()
    report.show("top", figures, as_json=options.json)


if __name__ == "__main__":
    main()
