"""Dynamic batching: concurrent calls of one model joined into one run, with bounded waiting.

The first caller of a batch, its leader, runs it for all. A single caller runs at once. Calls that
come while a batch runs form the next one; its leader waits for as many calls as the last batch had,
at most `wait_s`. So callers in lockstep stay batched, and one that stops delays the others once.

In a batch process (`remote_gpu.worker.joining`) calls come from several leases. A lease that ends
takes its waiting calls out, and the time of a run is charged to each lease by its items.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from operations.numpy_arrays import Array
from remote_gpu.api import Caller, OpCode, OpFailed

#: Common to all calls of a batch: outputs, and each input's name, type and trailing shape.
Key: TypeAlias = "tuple[object, ...]"

#: Larger batches gain nothing on a CPU, and delay their first call.
ITEMS_MAX = 64
_KEYS_MAX = 64  #: of the sizes of last batches
_LOOK_S = 0.02  #: between two looks whether the lease of a waiting call has ended


@dataclass(slots=True, eq=False)
class _WaitingCall:
    feeds: Mapping[str, Array]
    items: int
    caller: Caller | None  #: its lease, in a batch process
    done: bool = False
    leads: bool = False
    joined: int = 1  #: calls in its run
    results: list[Array] = field(default_factory=list)
    error: BaseException | None = None


class Batcher:
    """The batches of one model. Thread-safe; a call blocks until its results are ready."""

    def __init__(
        self,
        run: Callable[[Mapping[str, Array], Sequence[str]], list[Array]],
        items_max: int = ITEMS_MAX,
    ) -> None:
        """`run`: computes feeds whose first dimension counts independent items."""
        self._run = run
        self._items_max = items_max
        self._changed = threading.Condition()
        self._groups: dict[Key, list[_WaitingCall]] = {}
        self._expected: dict[Key, int] = {}
        self._running: set[Key] = set()

    def run(
        self,
        feeds: Mapping[str, Array],
        outputs: Sequence[str],
        turn: Callable[[], AbstractContextManager[None]],
        held: Callable[[int], AbstractContextManager[None]],
        wait_s: float,
        caller: Caller | None = None,
        items_max: int | None = None,
    ) -> tuple[list[Array], int]:
        """The results of these feeds, and the number of calls in the run.

        `turn`: the leader's turn for the run; `held`: reserves its memory for joint inputs;
        `items_max`: another limit than the batcher's. Raises as a separate run of these feeds, or
        OpFailed(EIO) when the caller's lease has ended.
        """
        key = _key(feeds, outputs)
        call = _WaitingCall(feeds, next(iter(feeds.values())).shape[0], caller)
        with self._changed:
            group = self._groups.setdefault(key, [])
            group.append(call)
            call.leads = len(group) == 1
            self._changed.notify_all()
            while not call.done and not call.leads:
                self._wait(key, call)
            batch = self._gather(key, call, wait_s, items_max) if call.leads else []
        if batch:
            self._lead(key, batch, outputs, turn, held)
        if call.error is not None:
            raise call.error
        return call.results, call.joined

    def _wait(self, key: Key, call: _WaitingCall) -> None:
        self._changed.wait(None if call.caller is None else _LOOK_S)
        group = self._groups.get(key, [])
        if call in group and not call.leads and call.caller is not None and call.caller.gone():
            group.remove(call)
            _withdraw(call)

    def _gather(
        self, key: Key, leader: _WaitingCall, wait_s: float, items_max: int | None
    ) -> list[_WaitingCall]:
        """The calls of the next run, the leader's first; the rest get their own leader.

        A leader whose lease has ended leads the others' run, without its own call.
        """
        while key in self._running:
            self._changed.wait()
        group = self._groups[key]
        end_s = time.monotonic() + wait_s
        while len(group) < self._expected.get(key, 1) and (left_s := end_s - time.monotonic()) > 0:
            self._changed.wait(left_s if leader.caller is None else min(left_s, _LOOK_S))
            if leader.caller is not None and leader.caller.gone():
                break
        for call in [call for call in group if call.caller is not None and call.caller.gone()]:
            group.remove(call)
            _withdraw(call)
        if leader.done:
            self._changed.notify_all()
            if not group:
                del self._groups[key]
                return []
        items, count, most = group[0].items, 1, items_max or self._items_max
        while count < len(group) and items + group[count].items <= most:
            items += group[count].items
            count += 1
        batch, rest = group[:count], group[count:]
        self._running.add(key)
        if len(self._expected) >= _KEYS_MAX:
            self._expected.clear()
        self._expected[key] = count
        if rest:
            self._groups[key] = rest
            rest[0].leads = True
        else:
            del self._groups[key]
        return batch

    def _lead(
        self,
        key: Key,
        batch: Sequence[_WaitingCall],
        outputs: Sequence[str],
        turn: Callable[[], AbstractContextManager[None]],
        held: Callable[[int], AbstractContextManager[None]],
    ) -> None:
        try:
            with turn(), charged([(call.caller, call.items) for call in batch]):
                if len(batch) == 1 or not self._run_joined(batch, outputs, held):
                    for call in batch:
                        self._run_alone(call, outputs)
        except BaseException as error:  # no turn: no call of the batch has a result
            for call in batch:
                call.error = error
            raise
        finally:
            with self._changed:
                self._running.discard(key)
                for call in batch:
                    call.done = True
                self._changed.notify_all()

    def _run_joined(
        self,
        batch: Sequence[_WaitingCall],
        outputs: Sequence[str],
        held: Callable[[int], AbstractContextManager[None]],
    ) -> bool:
        """Run a batch. False when it failed, or its results are not one per item."""
        items = sum(call.items for call in batch)
        size = sum(array.nbytes for call in batch for array in call.feeds.values())
        names = batch[0].feeds
        try:
            with held(size):
                feeds = {
                    name: np.concatenate([call.feeds[name] for call in batch]) for name in names
                }
                results = self._run(feeds, outputs)
        except Exception:  # of one call: each one is run alone
            return False
        if any(result.shape[:1] != (items,) for result in results):
            return False
        at = 0
        for call in batch:
            call.results = [result[at : at + call.items] for result in results]
            call.joined = len(batch)
            at += call.items
        return True

    def _run_alone(self, call: _WaitingCall, outputs: Sequence[str]) -> None:
        try:
            call.results = self._run(call.feeds, outputs)
        except Exception as error:
            call.error = error


@contextlib.contextmanager
def charged(calls: Sequence[tuple[Caller | None, int]]) -> Iterator[None]:
    """Charge the time of the block to the leases of calls, by their items."""
    items = Counter[Caller]()
    for caller, count in calls:
        if caller is not None:
            items[caller] += count
    started_s = time.monotonic()
    try:
        yield
    finally:
        used_s, total = time.monotonic() - started_s, items.total()
        for caller, part in items.items():
            caller.charge(used_s * part / total)


def _withdraw(call: _WaitingCall) -> None:
    call.error = OpFailed(OpCode.EIO, "the lease of the call has ended")
    call.done = True


def _key(feeds: Mapping[str, Array], outputs: Sequence[str]) -> Key:
    inputs = sorted((name, array.dtype.str, array.shape[1:]) for name, array in feeds.items())
    return (tuple(outputs), *inputs)
