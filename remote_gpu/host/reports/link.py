"""The port by which a host reports to the scheduler."""

from __future__ import annotations

from typing import Protocol

from corekit.ids import LeaseId
from gpu_scheduler.protocol.host import SessionChange


class Link(Protocol):
    """Reports to the scheduler; the link repeats each until it is acknowledged."""

    def session(self, change: SessionChange) -> None: ...
    def report_soon(self) -> None: ...
    def door(self, lease: LeaseId, address: str) -> None: ...
    def cut(self, lease: LeaseId) -> None: ...


class NoLink:
    """The link of a program that starts or stops: reports are dropped."""

    def session(self, *_: object) -> None:
        """Drop the report."""

    door = cut = report_soon = session


class Scheduler:
    """The scheduler as gpud's parts see it; the link is set once they are there."""

    def __init__(self) -> None:
        self.link: Link = NoLink()

    def report_soon(self) -> None:
        """Report warm workers and the health of cards soon: they have changed."""
        self.link.report_soon()
