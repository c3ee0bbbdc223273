"""Dialogs over the screen: a question that is answered with y or n, and the help."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

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
        """The box."""
        with Vertical():
            yield Static(self._text, markup=False)

    def action_answer(self, yes: bool) -> None:
        """Close with the answer."""
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
