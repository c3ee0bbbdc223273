"""The history with 100,000 jobs of 10,000 devices: what the collector writes, what is read of it.

events_per_s          changes of jobs that the store writes, in the collector's batches; compared
                      with SQLite alone: the same rows, made before, into the same tables
events_again_per_s    the same changes once more: each replaces the rows of its job
bytes_per_job         of the file
report_1d_s, …_all_s  the figures of `orchgpu report` for a day, and for everything; compared
                      with SQLite alone: every row of the four tables
activity_…_ms         the console's view of activity for an hour and for a day
page_ms, search_ms    a page of jobs; one by a part of its key, of which there is one

python -m benchmarks.history [--json] [--hosts N] [--jobs N] [--rounds N]
"""

from __future__ import annotations

import itertools
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from benchmarks import report
from benchmarks.measure import seconds
from benchmarks.scale import values
from benchmarks.scale.generated import GeneratedSystem
from benchmarks.scale.scheduler import sizes
from corekit.cli.progress import Bar
from gpu_scheduler.model import Record
from orchgpu.core.prices import Prices
from orchgpu.history.consumer import BATCH_MAX
from orchgpu.history.reader import HistoryReader, Window
from orchgpu.history.rows import attempt_rows, job_row, lease_rows, share_rows
from orchgpu.history.store import Batch, Presence, Store
from orchgpu.report.summary import report_of
from orchgpu.web.shared_answers import DEVICES_MAX, POINTS

TABLES = ("jobs", "leases", "shares", "attempts")
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
#: Steps of the progress bar for each pass of writing.
WRITING = 50
_ALL = "every row of the four tables, SQLite alone, s"

#: The rows of one table.
Rows = list[tuple[object, ...]]


class Bare:
    """The same tables, written and read by nothing but SQLite."""

    def __init__(self, path: Path) -> None:
        with Store(path):
            pass  # this creates the tables
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA synchronous = NORMAL")

    def write(self, rows: dict[str, Rows]) -> None:
        """One transaction."""
        self._db.execute("BEGIN IMMEDIATE")
        for table, of_table in rows.items():
            marks = ", ".join("?" * len(of_table[0]))
            self._db.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", of_table)
        self._db.execute("COMMIT")

    def read(self) -> None:
        """Every row of every table."""
        for table in TABLES:
            self._db.execute(f"SELECT * FROM {table}").fetchall()

    def close(self) -> None:
        self._db.close()


def rows_of(records: Sequence[Record]) -> dict[str, Rows]:
    """The rows that the store writes of these records."""
    made = (
        [msgspec.structs.astuple(job_row(one)) for one in records],
        *(
            [tuple(row.values()) for one in records for row in rows(one)]
            for rows in (lease_rows, share_rows, attempt_rows)
        ),
    )
    return dict(zip(TABLES, made, strict=True))


def inventory(system: GeneratedSystem) -> Batch:
    """All devices, present since a month."""
    since_s = system.now_s - 30 * DAY_S
    return Batch(
        inventory=[
            Presence(device=one.id, host=f"gpu{host:04d}", present=True, at_s=since_s)
            for host in range(system.hosts)
            for one in values.devices(system, host)
        ]
    )


def written_s(
    store: Store, bare: Bare, system: GeneratedSystem, at: Callable[[int], None]
) -> tuple[float, float]:
    """Seconds of the store and of SQLite alone, which take turns batch by batch."""
    ours_s = bare_s = 0.0
    records, done = values.ended_records(system), 0
    while batch := list(itertools.islice(records, BATCH_MAX)):
        rows = rows_of(batch)
        began_s = time.perf_counter()
        store.write(Batch(records=batch, position=str(done)))
        between_s = time.perf_counter()
        bare.write(rows)
        ours_s += between_s - began_s
        bare_s += time.perf_counter() - between_s
        done += len(batch)
        at(done)
    return ours_s, bare_s


def write(path: Path, bare: Bare, system: GeneratedSystem, bar: Bar) -> list[report.Figure]:
    """The figures of writing."""
    jobs = sum(1 for _ in values.ended_records(system))
    found, against = [], "SQLite alone, 1/s"
    with Store(path) as store:
        store.write(inventory(system))
        for number, name in enumerate(("events_per_s", "events_again_per_s")):

            def at(done: int, before: int = number * WRITING) -> None:
                bar.draw(before + done * WRITING // jobs, f"{done} jobs")

            ours_s, bare_s = written_s(store, bare, system, at)
            found.append(report.compared(name, jobs / ours_s, "1/s", against, jobs / bare_s))
        found.append(report.Figure("bytes_per_job", store.size_bytes / jobs, "bytes"))
    return found


def read(
    path: Path, bare: Bare, system: GeneratedSystem, rounds: int, bar: Bar
) -> list[report.Figure]:
    """The figures of reading."""
    prices, done = Prices(), itertools.count(1)
    whole_s = system.now_s - 2.5 * system.jobs - DAY_S
    with HistoryReader(path) as reader:

        def since(since_s: float) -> Window:
            return Window(since_s=since_s, until_s=system.now_s)

        def figures(window: Window) -> None:
            report_of(reader, window, prices=prices, memory_of=lambda _: 512)

        def activity(window: Window) -> None:
            reader.most_used(window, DEVICES_MAX)
            reader.series(window, (window.until_s - window.since_s) / POINTS)

        def took_s(name: str, work: Callable[[], object]) -> float:
            found = seconds(work, rounds)
            bar.draw(2 * WRITING + next(done), name)
            return found

        hour, day = since(system.now_s - HOUR_S), since(system.now_s - DAY_S)
        one_key = system.key.format(system.jobs - 9)
        bare_s = took_s("SQLite alone", bare.read)
        report_day_s = took_s("report of a day", lambda: figures(day))
        report_all_s = took_s("report of all", lambda: figures(since(whole_s)))
        rest = {
            "activity_1h_ms": lambda: activity(hour),
            "activity_1d_ms": lambda: activity(day),
            "page_ms": lambda: reader.jobs(),
            "search_ms": lambda: reader.jobs(text=one_key),
        }
        return [
            report.compared("report_1d_s", report_day_s, "s", _ALL, bare_s),
            report.compared("report_all_s", report_all_s, "s", _ALL, bare_s),
            *(report.Figure(name, 1000 * took_s(name, work), "ms") for name, work in rest.items()),
        ]


def main() -> None:
    """Measure and show."""
    parser = report.arguments(__doc__)
    sizes(parser)
    parser.add_argument("--rounds", type=int, default=3, help="of each query")
    options = parser.parse_args()
    system = values.large(time.time(), options.hosts, options.jobs)
    bar = Bar(2 * WRITING + 7, quiet=options.json)
    with tempfile.TemporaryDirectory(prefix="history-") as name:
        path = Path(name) / "history.sqlite"
        bare = Bare(Path(name) / "bare.sqlite")
        figures = write(path, bare, system, bar)
        figures += read(path, bare, system, options.rounds, bar)
        bare.close()
    bar.clear()
    report.show("history", figures, as_json=options.json)


if __name__ == "__main__":
    main()
