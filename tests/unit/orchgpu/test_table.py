"""The table of the job machine: complete, and drawn in the docs as it is."""

from __future__ import annotations

from gpu_scheduler.model import LeaseState
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.table import rows
from tools.job_machine import PAGE, page

#: Kinds of events by what they are about, and events whose kinds are rows of their own.
_ABSTRACT = {on.JobEvent, on.AttemptEvent, on.TimerFired, on.LeaseChanged}


def test_every_event_of_a_job_and_every_timer_has_a_row() -> None:
    triggers = {row.trigger for kind in (True, False) for row in rows(with_device=kind)}
    events = {*on.JobEvent.__subclasses__(), *on.AttemptEvent.__subclasses__()} - _ABSTRACT
    assert {*events, *do.Timer} <= triggers
    assert {LeaseState.ACTIVE, LeaseState.ENDED} <= triggers


def test_the_page_draws_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "run `python -m tools.job_machine`"
