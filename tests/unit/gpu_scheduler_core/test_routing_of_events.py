"""Every event has a handler, every durable part an effect."""

from __future__ import annotations

from typing import get_args

from gpu_scheduler.core import events as on
from gpu_scheduler.core.durable import changes as to
from gpu_scheduler.core.durable.apply import _EFFECTS
from gpu_scheduler.core.machine import HANDLERS


def test_every_event_but_the_tick_has_its_handler():
    assert set(HANDLERS) == set(get_args(on.Event)) - {on.Ticked}


def test_every_part_has_its_effect():
    assert set(_EFFECTS) == set(get_args(to.Part))
