"""Order of job records, in which a page may start after any record. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Order(Generic[T]):
    """Members in the order in which they were added. Each step costs the same, wherever it is.

    A dict has that order too, but an iteration of it starts at an end. The neighbours of each
    member are in two dicts of names only, which the collector of cyclic garbage does not visit.
    """

    def __init__(self) -> None:
        self._older: dict[T, T | None] = {}
        self._newer: dict[T, T | None] = {}
        self._oldest: T | None = None
        self._newest: T | None = None

    def __len__(self) -> int:
        return len(self._older)

    def __iter__(self) -> Iterator[T]:
        """The oldest first."""
        one = self._oldest
        while one is not None:
            yield one
            one = self._newer[one]

    def add(self, member: T) -> None:
        """Add a member as the newest; one that is there moves to that place."""
        self.remove(member)
        before = self._newest
        self._older[member], self._newer[member] = before, None
        if before is None:
            self._oldest = member
        else:
            self._newer[before] = member
        self._newest = member

    def remove(self, member: T) -> None:
        """Remove a member; idempotent."""
        if member not in self._older:
            return
        older, newer = self._older.pop(member), self._newer.pop(member)
        if older is None:
            self._oldest = newer
        else:
            self._newer[older] = newer
        if newer is None:
            self._newest = older
        else:
            self._older[newer] = older

    def newest(self, after: T | None = None) -> Iterator[T]:
        """The newest first, or those older than `after`; none if that is not a member."""
        one = self._newest if after is None else self._older.get(after)
        while one is not None:
            yield one
            one = self._older[one]
