"""Every event and op has a handler, every durable part an effect."""

from __future__ import annotations

from typing import get_args

from gpu_scheduler.core import events as on
from gpu_scheduler.core.machine import EVENTS, HOST_OPS, OPS, TIMERS
from gpu_scheduler.core.replay.apply import _EFFECTS
from gpu_scheduler.core.state.timers import TimerKind
from gpu_scheduler.protocol import changes as to
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.protocol import ops


def test_every_event_without_an_op_has_its_handler_but_the_tick() -> None:
    kinds = {getattr(kind, "__origin__", kind) for kind in get_args(on.Event)}
    assert set(EVENTS) == kinds - {on.Ticked, on.Asked, on.HostAsked}


def test_every_op_has_its_handler() -> None:
    assert set(OPS) == {ops.Hello, *ops.OPS.values()}


def test_every_op_of_a_host_has_its_handler_but_the_pages_that_the_daemon_joins() -> None:
    own = {host_ops.HostHello, *host_ops.HOST_OPS.values()} - {host_ops.MoreInstalled}
    assert set(HOST_OPS) == own == set(get_args(host_ops.HostOp))


def test_every_part_has_its_effect() -> None:
    assert set(_EFFECTS) == set(get_args(to.Part))


def test_every_timer_has_its_handler() -> None:
    assert set(TIMERS) == set(TimerKind)
