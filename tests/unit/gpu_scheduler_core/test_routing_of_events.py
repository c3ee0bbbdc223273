"""Every event has somebody who decides about it."""

from __future__ import annotations

from typing import get_args

from gpu_scheduler.core import events as on
from gpu_scheduler.core.machine import HANDLERS


def test_every_event_but_the_tick_has_its_handler():
    assert set(HANDLERS) == set(get_args(on.Event)) - {on.Ticked}
