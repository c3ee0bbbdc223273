"""Dialogs over the screen: the help, and questions before the changes that keys make.

The changes are those of the commands; each returns what was done, in a sentence. Cancel and retry
call the cloud, so they run in a thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from corekit.ids import DeviceId, HostId
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.protocol import ops
from orchgpu.cli.commands.jobs.retry import retry_job
from orchgpu.cli.top.rows import TableRow
from orchgpu.jobs.cancelling import cancel_job
from orchgpu.jobs.cloud import JobCloud

HELP = """\
Views      1 fleet   2 queue   3 jobs   4 job
           :fleet  :queue  :jobs  :job ID  :quit
Move       arrows or j k, PgUp PgDn, Home End or g G
Open       Enter: the job of the row     Esc: back
Filter     /words: rows that contain all of them; Esc removes it
Sort       s: the next column            S: the other direction
Job        c: cancel                     r: retry a failed one
Operator   d: drain the device of the row, or undrain it
           D: the same for its whole host
Leave      q

The view is live: every push of the scheduler is shown.
Without colours: NO_COLOR=1 orchgpu top"""


class Dialog(ModalScreen[bool]):
    """A box over the screen, with a text; its result is True for yes."""

    DEFAULT_CSS = """
    Dialog { align: center middle; background: transparent; }
    Dialog Vertical {
        width: auto; height: auto; max-width: 76; padding: 0 2; border: solid ansi_default;
        background: ansi_default;
    }
    Dialog Static { width: auto; max-width: 70; height: auto; background: ansi_default; }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self._text, markup=False)

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)


class Question(Dialog):
    """A question before something changes; only y is yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", show=False),
        Binding("n,escape,q,enter", "answer(False)", show=False),
    ]

    def __init__(self, text: str) -> None:
        super().__init__(f"{text}\n\ny yes   n no")


class Help(Dialog):
    """The keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark,space", "answer(False)", show=False)
    ]

    def __init__(self) -> None:
        super().__init__(HELP)


#: A change that was confirmed; its result is one sentence.
Change = Callable[[], Awaitable[str]]


def place_of(row: TableRow, *, whole_host: bool) -> str:
    """The device or the host, as its drain names it."""
    return str(row.host) if whole_host else f"{row.host}/{row.index}"


def drain_question(row: TableRow, *, whole_host: bool) -> str:
    place = place_of(row, whole_host=whole_host)
    if row.drained:
        return f"Grant leases on {place} again?"
    return f"Drain {place}? Its leases continue; it takes no new ones."


async def drain(client: SchedulerClient, row: TableRow, *, whole_host: bool) -> str:
    """Drain, or undrain what is drained."""
    assert row.host is not None, "the row of a device"
    host, place = HostId(row.host), place_of(row, whole_host=whole_host)
    device = None if whole_host or row.device is None else DeviceId(row.device)
    if row.drained:
        await client.ask(ops.Undrain(host=host, device=device))
        return f"{place} takes leases again"
    await client.ask(ops.Drain(host=host, device=device))
    return f"{place} is drained"


def cancel(job: str, address: str) -> str:
    with closing(JobCloud()) as cloud:
        cancel_job(cloud, address, job, None, "cancelled by its user")
    return f"{job} is cancelled"


def retry(job: str, address: str) -> str:
    with closing(JobCloud()) as cloud:
        function = retry_job(cloud, job, address)
    return f"{job} of {function.name} runs again"


#: Key → its meaning, its question, and its change of a job, which returns what was done.
JOB_CHANGES: Mapping[str, tuple[str, str, Callable[[str, str], str]]] = {
    "c": ("cancels a job", "Cancel {}? Its lease is revoked.", cancel),
    "r": ("runs a failed job again", "Run {} again?", retry),
}
