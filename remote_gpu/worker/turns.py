"""A lane's turn on its device: asked of gpud, unless the lease has the device to itself.

The gate of a device is *open* while no other lease is on it: computing then costs no message. While
it is closed, a lane asks before each operation and says when it is done; gpud decides whose turn it
is (`remote_gpu.host.slices`).
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any


class Gate:
    """The gate of one device in one worker; lanes use it from their threads."""

    def __init__(self, device: int, send: Callable[[Mapping[str, Any]], None]) -> None:
        """`send`: one packet to gpud, from any thread."""
        self._device = device
        self._send = send
        self._tickets = itertools.count(1)
        self._lock = threading.Lock()
        self._open = True
        self._free: set[int] = set()  # turns that gpud does not know of
        self._waiting: dict[int, threading.Event] = {}

    def set_open(self, is_open: bool) -> None:
        """gpud says whether other leases are on the device; it is told what runs already."""
        with self._lock:
            self._open = is_open
            if not is_open:
                for ticket in sorted(self._free):
                    self._send({"began": [self._device, ticket]})
                self._free.clear()
            waiting = list(self._waiting.values()) if is_open else []
        for event in waiting:
            event.set()

    def granted(self, ticket: int) -> None:
        """gpud gives a turn."""
        with self._lock:
            event = self._waiting.get(ticket)
        if event is not None:
            event.set()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """To compute within."""
        ticket = self._enter()
        try:
            yield
        finally:
            with self._lock:
                if ticket in self._free:
                    self._free.remove(ticket)
                else:
                    self._send({"done": [self._device, ticket]})

    def _enter(self) -> int:
        """Wait for a turn, unless the gate is open."""
        with self._lock:
            ticket = next(self._tickets)
            if self._open:
                self._free.add(ticket)
                return ticket
            event = self._waiting[ticket] = threading.Event()
            self._send({"ask": [self._device, ticket]})
        event.wait()
        with self._lock:
            del self._waiting[ticket]
        return ticket
