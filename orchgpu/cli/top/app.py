"""The application of `orchgpu top`: views, keys, and the message line."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.events import Resize
from textual.widgets import Input, Static

from corekit.cli.chart import Glyphs
from corekit.cli.screen import Coloured, Line
from corekit.cli.text import cut, printable
from corekit.cli.times import shown_time
from corekit.errors import AppError
from corekit.values import replace
from orchgpu.cli.top.dialogs import JOB_CHANGES, Change, Help, Question, drain, drain_question
from orchgpu.cli.top.reader import ScreenReader
from orchgpu.cli.top.rows import (
    COLUMNS,
    TableRow,
    TableState,
    ViewName,
    fleet_rows,
    job_rows,
    queue_rows,
    typed,
)
from orchgpu.cli.top.snapshot import ScreenData
from orchgpu.cli.top.story import story_lines
from orchgpu.cli.top.table import RowTable
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.live.feed import JobsFeed

KEYS = (
    "1 fleet  2 queue  3 jobs  4 job  / filter  s sort  Enter open  d drain  c cancel"
    "  r retry  ? help  q quit"
)
#: On a narrow terminal.
KEYS_SHORT = "1-4 view  / filter  s sort  d drain  c cancel  r retry  ? help  q quit"
EMPTY = {
    ViewName.FLEET: "no host has registered",
    ViewName.QUEUE: "nothing waits",
    ViewName.JOBS: "no jobs in the last hour",
}


class TopApp(App[None]):
    """A live screen of fleet, queue, jobs and one job."""

    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    Dialog { background: transparent; }
    Static { background: ansi_default; height: auto; }
    RowTable, VerticalScroll { background: ansi_default; }
    VerticalScroll { scrollbar-gutter: stable; scrollbar-size-vertical: 1; }
    #foot { dock: bottom; height: auto; }
    #keys, #message { height: 1; }
    #typed { height: 1; border: none; padding: 0; background: ansi_default; color: ansi_default; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(number), f"view('{view}')", show=False)
            for number, view in enumerate(ViewName, 1)
        ),
        Binding("colon", "type(':')", show=False),
        Binding("slash", "type('/')", show=False),
        Binding("escape", "leave", show=False),
        Binding("s", "sort", show=False),
        Binding("S", "reverse", show=False),
        Binding("d", "drain(False)", show=False),
        Binding("D", "drain(True)", show=False),
        *(Binding(key, f"change_job('{key}')", show=False) for key in JOB_CHANGES),
        Binding("question_mark", "help", show=False),
        Binding("q,ctrl+c", "quit", show=False),
    ]
    ENABLE_COMMAND_PALETTE = False
    TITLE = "orchgpu top"

    def __init__(self, address: str, glyphs: Glyphs, http: str | None = None) -> None:
        """`http`: the scheduler's HTTP endpoints, where they are known."""
        super().__init__(ansi_color=True)  # the colours of the terminal, light or dark
        self.theme = "ansi-dark"
        self.address = address
        self._http = http
        self.view = ViewName.FLEET
        self.tables = dict.fromkeys(COLUMNS, TableState())
        self.snapshot = ScreenData()
        self.job: str | None = None
        self.note = ""  #: what the last key did
        self._glyphs = glyphs
        self._fleet: tuple[ScreenData, list[TableRow]] = (self.snapshot, [])
        self._typing = ""  #: `:` or `/` while a line is typed
        self._before = ViewName.JOBS  #: where Esc leads from a job
        self._feed: JobsFeed | None = None
        self._reader: ScreenReader | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield RowTable()
        with VerticalScroll(id="story"):
            yield Static(id="story_text", markup=False)
        with Vertical(id="foot"):
            yield Static(id="message", markup=False)
            yield Input(id="typed", compact=True)
            yield Static(id="keys", markup=False)

    def on_mount(self) -> None:
        self.query_one("#typed", Input).display = False
        self.run_worker(self._live(), exclusive=True, exit_on_error=True)
        self.set_interval(1.0, self._tick)
        self._show_view()

    async def _live(self) -> None:
        try:
            async with JobsFeed(self.address, self._http) as feed:
                with closing(JobCloud()) as cloud:
                    self._feed, self._reader = feed, ScreenReader(feed, cloud, self._updated)
                    self._reader.show(self.view, self.job)
                    await self._reader.run()
        except AppError as error:
            self.failed = error
            self.exit(return_code=1)

    #: The error that ended the program.
    failed: AppError | None = None

    # ------------------------------------------------------------------ drawing

    def _updated(self, snapshot: ScreenData) -> None:
        self.snapshot = snapshot
        self.draw()

    def _tick(self) -> None:
        """Times pass without a change too."""
        if self._emptied:
            return
        self._draw_head()
        if self.view is not ViewName.FLEET:
            self._draw_view()

    def draw(self) -> None:
        if self._emptied:
            return
        self._draw_head()
        self._draw_view()
        self._draw_message()

    @property
    def _emptied(self) -> bool:
        """True once the widgets are gone, while the last read may still arrive."""
        return not self.query("#head")

    def on_resize(self, event: Resize) -> None:
        del event
        self.call_after_refresh(self.draw)

    def _draw_head(self) -> None:
        width = max(20, self.size.width)
        names = "  ".join(f"[{name}]" if name is self.view else str(name) for name in ViewName)
        head = f"orchgpu top  {self.address}  {shown_time(time.time())}  {names}"
        text = Text(cut(head, width), style="bold", no_wrap=True)
        text.append("\n" + cut(self.snapshot.overview() or "reading …", width), style="not bold")
        self.query_one("#head", Static).update(text)
        keys = KEYS if width > len(KEYS) else KEYS_SHORT
        self.query_one("#keys", Static).update(Text(cut(keys, width), style="reverse"))

    def _draw_message(self) -> None:
        error = self.snapshot.scheduler_error
        words = (
            "" if self.view is ViewName.JOB else self.tables[self.view].words(COLUMNS[self.view])
        )
        shown = (
            error.message if error is not None else "   ".join(p for p in (words, self.note) if p)
        )
        text = Text(cut(printable(shown), max(20, self.size.width)))
        text.stylize("red" if error is not None else "")
        self.query_one("#message", Static).update(text)

    def _draw_view(self) -> None:
        if self.view is ViewName.JOB:
            self._draw_story()
            return
        state = self.tables[self.view]
        rows = state.shown(self._rows())
        unread = {
            ViewName.FLEET: self.snapshot.hosts,
            ViewName.QUEUE: self.snapshot.queue,
            ViewName.JOBS: self.snapshot.records,
        }[self.view] is None
        empty = "reading …" if unread else EMPTY[self.view]
        if state.filter and not unread:
            empty = f"no row contains {state.filter!r}"
        self.query_one(RowTable).show(COLUMNS[self.view], rows, empty)

    def _rows(self) -> list[TableRow]:
        if self.view is ViewName.FLEET:
            if self._fleet[0] is not self.snapshot:  # thousands of rows: made once per read
                self._fleet = (self.snapshot, fleet_rows(self.snapshot, self._glyphs))
            return self._fleet[1]
        if self.view is ViewName.QUEUE:
            return queue_rows(self.snapshot, time.time())
        return job_rows(self.snapshot, time.time())

    def _draw_story(self) -> None:
        width = max(20, self.size.width - 2)
        story, error = self.snapshot.story, self.snapshot.story_error
        if story is not None and story.known.job == self.job:
            text = as_text(story_lines(story, width, time.time(), self._glyphs))
            if error is not None:
                text.append(f"\n\n{printable(error.message)}")
        elif error is not None:
            text = Text(printable(error.message))
        elif self.job is None:
            text = Text("no job is chosen: Enter on a row, or :job ID")
        else:
            text = Text(f"reading {self.job} …")
        self.query_one("#story_text", Static).update(text)

    def _show_view(self) -> None:
        table, story = self.query_one(RowTable), self.query_one("#story", VerticalScroll)
        table.display = self.view is not ViewName.JOB
        story.display = self.view is ViewName.JOB
        (table if table.display else story).focus()
        if self._reader is not None:
            self._reader.show(self.view, self.job)
        self.draw()

    # ------------------------------------------------------------------ keys

    def action_view(self, name: str) -> None:
        if ViewName(name) is ViewName.JOB:
            self.open_job(self._job_of_row() or self.job)
            return
        self.view = ViewName(name)
        self._show_view()

    def open_job(self, job: str | None) -> None:
        if self.view is not ViewName.JOB:
            self._before = self.view
        self.view, self.job = ViewName.JOB, job
        self._show_view()

    def on_row_table_opened(self, message: RowTable.Opened) -> None:
        if message.row.job is None:
            self._report(f"{message.row.key} has no job")
        else:
            self.open_job(message.row.job)

    def action_leave(self) -> None:
        """Leave the typed line, the job, or the filter."""
        if self._typing:
            self._end_typing()
        elif self.view is ViewName.JOB:
            self.view = self._before
            self._show_view()
        else:
            self._change_table(replace(self.tables[self.view], filter=""))

    def action_sort(self) -> None:
        if self.view is not ViewName.JOB:
            self._change_table(self.tables[self.view].sorted_by_next(len(COLUMNS[self.view])))

    def action_reverse(self) -> None:
        if self.view is not ViewName.JOB:
            self._change_table(self.tables[self.view].reversed())

    def _change_table(self, state: TableState) -> None:
        self.tables[self.view] = state
        self.note = ""
        self.draw()

    def action_type(self, what: str) -> None:
        if what == "/" and self.view is ViewName.JOB:
            return
        self._typing = what
        line = self.query_one("#typed", Input)
        line.value = self.tables[self.view].filter if what == "/" else ""
        line.placeholder = "words of a row" if what == "/" else "fleet, queue, jobs, job ID, quit"
        line.display = True
        line.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        if self._typing == "/" and self.view is not ViewName.JOB:
            self._change_table(replace(self.tables[self.view], filter=event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        what = self._typing
        self._end_typing()
        if what != ":":
            return
        command = typed(event.value)
        if command.leave:
            self.exit()
        elif command.job is not None:
            self.open_job(command.job)
        elif command.view is not None:
            self.action_view(command.view)
        else:
            self._report(command.problem)

    def _end_typing(self) -> None:
        self._typing = ""
        self.query_one("#typed", Input).display = False
        self._draw_message()
        table = self.query_one(RowTable)
        (table if table.display else self.query_one("#story")).focus()

    def action_help(self) -> None:
        self.push_screen(Help())

    # ------------------------------------------------------------------ changes

    def _job_of_row(self) -> str | None:
        row = self.query_one(RowTable).selected if self.view is not ViewName.JOB else None
        return None if row is None else row.job

    def action_drain(self, whole_host: bool) -> None:
        """Drain or undrain the device of the row, or its host."""
        row = self.query_one(RowTable).selected if self.view is ViewName.FLEET else None
        feed = self._feed
        if row is None or feed is None:
            self._report("d drains the device of a row: press 1 for the fleet")
            return
        self._ask(
            drain_question(row, whole_host=whole_host),
            lambda: drain(feed.client, row, whole_host=whole_host),
        )

    def action_change_job(self, key: str) -> None:
        meaning, question, change = JOB_CHANGES[key]
        job = self._job_of_row() or (self.job if self.view is ViewName.JOB else None)
        if job is None:
            self._report(f"{key} {meaning}: this row has none")
            return
        self._ask(question.format(job), lambda: asyncio.to_thread(change, job, self.address))

    def _ask(self, question: str, change: Change) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                self.run_worker(self._perform(change), group="changes")

        self.push_screen(Question(question), answered)

    async def _perform(self, change: Change) -> None:
        self._report("…")
        try:
            self._report(await change())
        except AppError as error:
            self._report(error.message)
        if self._reader is not None:
            self._reader.wake()

    def _report(self, text: str) -> None:
        self.note = text
        if not self._emptied:
            self._draw_message()


def as_text(lines: list[Line]) -> Text:
    text = Text(no_wrap=True)
    for number, line in enumerate(lines):
        text.append("\n" if number else "")
        for part in line:
            if isinstance(part, Coloured):
                text.append(part.word, style=part.colour or "")
            else:
                text.append(part)
    return text
