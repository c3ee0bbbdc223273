"""`orchgpu top` by Textual's Pilot, headless, against a real ssgmd and the embedded cloud."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from typing import Any, TypeVar, overload

import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot

from contract.keys import result_key
from corekit.cli.chart import BLOCKS
from corekit.cli.text import cells
from corekit.ids import JobId
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import Request
from gpu_scheduler.protocol import ops
from orchgpu.cli.top.app import TopApp
from orchgpu.cli.top.rows import FLEET, TableRow
from orchgpu.cli.top.table import MEASURED_MAX, RowTable
from orchgpu.jobs import cancelling
from orchgpu.jobs import scheduler as jobs_scheduler
from tests.commandline import run
from tests.integration.cli.deployed import finished
from tests.integration.ssgm.played_host import PlayedHost
from tests.scheduler_thread import scheduler_in_thread

T = TypeVar("T")

DEVICE = {"kind": "cuda", "model": "Tesla V100", "memory_mib": 1000}
pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A scheduler with two hosts of three devices, for all tests of this module."""
    with (
        scheduler_in_thread(tmp_path_factory.mktemp("top") / "state") as found,
        ExitStack() as all_,
    ):
        for name, devices in (("gpu-a", 2), ("gpu-b", 1)):
            one = PlayedHost(found, name, "127.0.0.1:1", *[DEVICE] * devices)
            all_.enter_context(closing(one))
        yield found


@pytest.fixture
def patient(s3: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The cloud with function `f`, and commands that wait for a loaded machine."""
    monkeypatch.setattr(jobs_scheduler, "ANSWER_WITHIN_S", 60.0)
    monkeypatch.setattr(cancelling, "FINISHED_WITHIN_S", 0.2)  # there is no orchestrator
    return s3


def screen(app: TopApp) -> list[str]:
    """The lines as a person sees them."""
    return [strip.text.rstrip() for strip in app.screen._compositor.render_strips()]


async def until(pilot: Pilot[None], what: str, holds: Callable[[], T]) -> T:
    try:
        async with asyncio.timeout(30):
            while not (value := holds()):
                await pilot.pause(0.02)
    except TimeoutError:
        assert isinstance(pilot.app, TopApp)
        raise AssertionError("\n".join([f"no {what}", *screen(pilot.app)])) from None
    await pilot.pause()
    return value


async def shows(pilot: Pilot[None], text: str) -> list[str]:
    app = pilot.app
    assert isinstance(app, TopApp)
    await until(pilot, text, lambda: any(text in line for line in screen(app)))
    return screen(app)


def selected(app: TopApp) -> str | None:
    """The job of the row at the cursor."""
    row = app.query_one(RowTable).selected
    return None if row is None else row.job


def places(lines: list[str]) -> list[str]:
    """The first column of the rows of the queue."""
    return [line.split()[0] for line in lines if line[:1].isdigit() and "1 × device" in line]


@asynccontextmanager
async def opened(address: str, *, columns: int = 80) -> AsyncIterator[tuple[TopApp, Pilot[None]]]:
    app = TopApp(address, BLOCKS)
    async with app.run_test(size=(columns, 24)) as pilot:
        await until(pilot, "everything was read", lambda: app.snapshot.hosts is not None)
        yield app, pilot


async def begin(client: SchedulerClient, number: int, memory_mib: int = 600) -> str:
    """A job of function `f` whose owner is the test."""
    job = f"j{number:025x}"
    block = {"function": "f", "input": {"bucket": "inputs", "key": f"{number}.png"}}
    await client.ask(
        ops.Attempt(
            holder=JobId(job), n=1, revision=0, request=Request(memory_mib=memory_mib), block=block
        )
    )
    return job


async def end(client: SchedulerClient, job: str) -> None:
    await client.ask(ops.Finish(holder=JobId(job), outcome="CANCELLED", reason="CANCELLED_BY_USER"))


async def test_views_are_live_and_a_job_opens_by_enter(address: str, patient: Any) -> None:
    async with opened(address) as (app, pilot), SchedulerClient(address) as client:
        first = await shows(pilot, "gpu-b")
        assert "[fleet]" in first[0]
        job = await begin(client, 1)
        await shows(pilot, "██████····")  # no key was pressed
        await pilot.press("3")
        await shows(pilot, "RESERVED")
        await pilot.press("enter")
        page = await shows(pilot, "staging")
        assert app.job == job
        assert any(line.startswith(job) and "RESERVED" in line for line in page)
        assert any(line.startswith("device") and "so far" in line for line in page)
        await end(client, job)
        finished(patient, job, "1.out")
        page = await shows(pilot, "s3://outputs/1.out")
        await pilot.press("escape")
        await shows(pilot, "[jobs]")


async def test_the_queue_has_reasons_and_rows_are_filtered_and_sorted(
    address: str, patient: Any
) -> None:
    async with opened(address) as (app, pilot), SchedulerClient(address) as client:
        jobs = [await begin(client, number, 1000) for number in range(10, 15)]
        await pilot.press("2")
        lines = await shows(pilot, "BUSY")
        assert places(lines) == ["1", "2"]
        await pilot.press("slash", *"00e", "enter")
        await until(pilot, "one row", lambda: places(screen(app)) == ["2"])
        assert "/00e" in screen(app)[-2]
        await pilot.press("escape", "s", "S")
        await shows(pilot, "by PLACE ↓")
        assert places(screen(app)) == ["2", "1"]
        await pilot.press("colon", *"jobs", "enter")
        await shows(pilot, "[jobs]")
        await pilot.press("colon", *"nix", "enter")
        await shows(pilot, "'nix' is not a view")
        for job in jobs:
            await end(client, job)


async def test_a_drain_is_confirmed_and_undone(address: str, patient: Any) -> None:
    async def drained(client: SchedulerClient) -> bool:
        hosts = (await client.inventory()).hosts
        return any(view.drained for host in hosts for view in host.devices)

    async with opened(address) as (_, pilot), SchedulerClient(address) as client:
        await shows(pilot, "gpu-b")
        await pilot.press("d")
        await shows(pilot, "Drain gpu-a/0?")
        await pilot.press("n")
        assert not await drained(client)
        await pilot.press("d", "y")
        await shows(pilot, "0 (drained)")
        assert await drained(client)
        await pilot.press("d")
        await shows(pilot, "Grant leases on gpu-a/0 again?")
        await pilot.press("y")
        await shows(pilot, "takes leases again")
        assert not await drained(client)


async def test_a_job_is_cancelled_after_a_question(address: str, patient: Any) -> None:
    async with opened(address) as (app, pilot), SchedulerClient(address) as client:
        job = await begin(client, 20)
        await pilot.press("3", "slash", *job, "enter")
        await until(pilot, "the job", lambda: selected(app) == job)
        await pilot.press("c")
        await shows(pilot, f"Cancel {job}?")
        await pilot.press("y")
        await until(pilot, "it is cancelled", lambda: "is cancelled" in app.note)
        stored = patient.get_object(Bucket="middle", Key=result_key(job))
        assert b"CANCELLED" in stored["Body"].read()
        await pilot.press("r", "y")
        await until(pilot, "a refusal", lambda: "not a failed job" in app.note)


async def test_an_unknown_job_and_a_row_without_one_are_explained(
    address: str, patient: Any
) -> None:
    async with opened(address) as (_, pilot):
        await shows(pilot, "gpu-b")
        await pilot.press("end", "c")
        await shows(pilot, "this row has none")
        await pilot.press("4")
        await shows(pilot, "no job is chosen")
        await pilot.press("colon", *"job j404", "enter")
        await shows(pilot, "no job 'j404' is known")
        await pilot.press("question_mark")
        await shows(pilot, "Operator")
        await pilot.press("escape", "q")


@pytest.mark.parametrize("columns", [40, 80, 200])
async def test_no_line_is_wider_than_the_terminal(address: str, patient: Any, columns: int) -> None:
    async with opened(address, columns=columns) as (app, pilot):
        await shows(pilot, "gpu-b")
        for key in "1234":
            await pilot.press(key)
            assert all(cells(line) <= columns for line in screen(app))
        assert "help" in screen(app)[-1] or columns == 40


async def test_without_colours(address: str, patient: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with opened(address) as (app, pilot):
        await shows(pilot, "gpu-b")
        assert app.no_color


async def test_a_scheduler_that_is_down_ends_the_screen(
    patient: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchgpu.jobs.live.feed.ANSWER_WITHIN_S", 0.05)
    app = TopApp("127.0.0.1:1", BLOCKS)
    async with app.run_test() as pilot:
        await until(pilot, "the end", lambda: app.failed is not None)
    assert app.return_code == 1


async def test_without_a_terminal_the_command_names_the_other_one(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(("top", "--scheduler", address)) == 2
    assert "orchgpu jobs --watch" in capsys.readouterr().err


class CountedRows(Sequence[TableRow]):
    """Rows that count how often one of them is read."""

    def __init__(self, number: int) -> None:
        self.rows = [
            TableRow(key=str(n), cells=(f"host-{n}", *[""] * 13), order=(n,) * 14)
            for n in range(number)
        ]
        self.read = 0

    @overload
    def __getitem__(self, at: int) -> TableRow: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[TableRow]: ...

    def __getitem__(self, at: int | slice) -> TableRow | Sequence[TableRow]:
        self.read += 1
        return self.rows[at]

    def __len__(self) -> int:
        return len(self.rows)


class OneTable(App[None]):
    """A table alone."""

    def compose(self) -> ComposeResult:
        yield RowTable()


async def test_only_the_rows_on_the_screen_are_drawn() -> None:
    app = OneTable()
    async with app.run_test(size=(80, 24)) as pilot:
        table, rows = app.query_one(RowTable), CountedRows(5 * MEASURED_MAX)
        table.show(FLEET, rows, "")
        await pilot.pause()
        rows.read = 0
        await pilot.press("pagedown", "down", "end")
        await pilot.pause()
        selected = table.selected
        assert selected is not None
        assert selected.key == str(len(rows) - 1)
        assert 0 < rows.read < 20 * app.size.height
