"""Prints the functions and files that one call passes, in order: `python -m tools.walk`.

A *stay* is a run of calls in one file; a *return* is a stay in a file that was left before. Few of
both mean that a reader can follow the path from top to bottom.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

from corekit.budget import Budget
from corekit.ids import AttemptId, DeviceId, HostId, IdSource, SessionId
from gpu_scheduler.core import events as on
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.model import Device, DeviceKind, Health, Request
from gpu_scheduler.policy_registry import installed_policies
from gpu_scheduler.protocol import host, ops
from gpu_scheduler.protocol.codec import VERSION

ROOT = Path(__file__).resolve().parents[1]
#: Parts of a function's body that have a frame of their own, but are no step for a reader.
_INNER = ("<genexpr>", "<lambda>", "<listcomp>", "<dictcomp>", "<setcomp>")


@dataclass(slots=True)
class Walk:
    """The functions of the project that a call passed."""

    within: tuple[str, ...]  #: folders
    steps: list[tuple[str, str]] = field(default_factory=list)  #: file and function, in order

    def passed(self, code: CodeType) -> None:
        """Add the call of a function, if it is one of the folders' own."""
        file = code.co_filename.removeprefix(f"{ROOT}/")
        if file.startswith(self.within) and code.co_name not in _INNER:
            self.steps.append((file, code.co_qualname))

    @property
    def functions(self) -> dict[tuple[str, str], int]:
        """The calls of each function, by its first call."""
        calls: dict[tuple[str, str], int] = {}
        for step in self.steps:
            calls[step] = calls.get(step, 0) + 1
        return calls

    @property
    def stays(self) -> list[str]:
        """The files in the order of the walk."""
        files = [file for file, _ in self.steps]
        return [file for before, file in zip(["", *files], files, strict=False) if file != before]

    def lines(self) -> Iterator[str]:
        """Every step, and the totals."""
        file = ""
        for here, function in self.steps:
            if here != file:
                yield here
            file = here
            yield f"    {function}"
        stays, files = self.stays, dict.fromkeys(self.stays)
        yield (
            f"{len(self.functions)} functions in {len(files)} files; {len(self.steps)} calls, "
            f"{len(stays)} stays, {len(stays) - len(files)} returns"
        )


@contextmanager
def walking(*within: str) -> Iterator[Walk]:
    """Record the functions of these folders that are called, in this thread."""
    walk = Walk(within)

    resumed: dict[FrameType, None] = {}

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or frame in resumed:
            return
        if frame.f_code.co_flags & inspect.CO_GENERATOR:
            resumed[frame] = None  # each further item is the same step of the walk
        walk.passed(frame.f_code)

    sys.setprofile(profile)
    try:
        yield walk
    finally:
        sys.setprofile(None)


def reserve() -> Walk:
    """One reserve that is granted at once, on one of four devices of one host."""
    machine = SchedulerMachine(Budget(), IdSource(1), policies=installed_policies())
    devices = tuple(
        Device(
            id=DeviceId(f"d{index}"),
            index=index,
            kind=DeviceKind.CUDA,
            model="T4",
            memory_mib=16_000,
            driver="535.1",
            runtime="12.2",
            health=Health.OK,
        )
        for index in range(4)
    )
    session, at_s, wall_s = SessionId("s"), 100.0, 1e6
    hello = host.HostHello(
        host=HostId("h"),
        incarnation="i",
        gateway="h:1",
        devices=devices,
        epoch_seen=0,
        installed=(),
        version=VERSION,
    )
    machine.handle(on.EpochBegan(at_s=at_s, wall_s=wall_s))
    machine.handle(on.HostAsked(host=hello.host, reply_to="1", op=hello, at_s=at_s, wall_s=wall_s))
    machine.handle(
        on.Asked(
            session=session,
            reply_to="2",
            op=ops.Hello(session=session, version=VERSION),
            at_s=at_s,
            wall_s=wall_s,
        )
    )
    op = ops.Reserve(attempt=AttemptId("a"), request=Request(memory_mib=4_000))
    event = on.Asked(session=session, reply_to="3", op=op, at_s=at_s, wall_s=wall_s)
    with walking("gpu_scheduler/core/") as walk:
        machine.handle(event)
    return walk


WALKS: dict[str, Callable[[], Walk]] = {"reserve": reserve}


def main() -> None:
    """Print the walks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("walks", nargs="*", choices=[*WALKS, []], help="default: all")
    for name in parser.parse_args().walks or WALKS:
        print(f"\n{name}")
        print("\n".join(WALKS[name]().lines()))


if __name__ == "__main__":
    main()
