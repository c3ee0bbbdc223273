"""Sessions of browsers, in memory: each acts with the key that opened it, until it ends.

A session ends after `IDLE_S` without a request, after `LENGTH_S` in any case, when it is closed,
when its key is revoked, and with the server. The browser has a random token in a cookie that no
script can read; the key stays here. A change needs the session's CSRF token as well, which only a
page of this server can read. Sessions, streams of events and calls in line have a limited number of
places, which no key takes from one that has fewer.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from corekit.aio.clock import Clock
from corekit.errors import AppError, ErrorCode
from orchgpu.jobs.rights import KeyRights

T = TypeVar("T", bound=Hashable)


class Places(Generic[T]):
    """The taken places: of each party in the order of use, the longest unused first."""

    def __init__(self, each_max: int, total_max: int) -> None:
        self.each_max = each_max
        self.total_max = total_max
        self._taken: dict[str, dict[T, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def enter(self, party: str, item: T) -> T | None:
        """Take a place. Returns what has to go for it, which has left already."""
        gone, own = None, self._taken.get(party, {})
        if len(own) >= self.each_max:
            gone = self._first_out(party)
        elif self._count >= self.total_max:
            gone = self._first_out(max(self._taken, key=lambda one: len(self._taken[one])))
        self._taken.setdefault(party, {})[item] = None
        self._count += 1
        return gone

    def leave(self, party: str, item: T) -> None:
        """Give a place back; safe to repeat."""
        own = self._taken.get(party, {})
        if item in own:
            del own[item]
            self._count -= 1
            if not own:
                del self._taken[party]

    def used(self, party: str, item: T) -> None:
        """Note a use: the item is the party's newest now."""
        own = self._taken.get(party, {})
        if item in own:
            del own[item]
            own[item] = None

    def first(self, party: str) -> T | None:
        """The longest unused item of a party."""
        return next(iter(self._taken.get(party, ())), None)

    def _first_out(self, party: str) -> T | None:
        item = self.first(party)
        if item is not None:
            self.leave(party, item)
        return item


LENGTH_S = 12 * 3600.0
IDLE_S = 2 * 3600.0
#: The key of a session in use is checked again this long after the last check.
CHECK_S = 30.0
#: Sessions of one key; with more, the one of them that was used longest ago ends.
SESSIONS_OF_KEY_MAX = 20
#: Sessions of all; with more, such a one ends of the key that has most.
SESSIONS_MAX = 1000
_TOKEN_BYTES = 32


@dataclass(slots=True)
class Session:
    """One browser."""

    viewer: KeyRights
    key: str | None = field(repr=False)  #: None: the scheduler needs none
    csrf: str = field(repr=False)
    ends_s: float  #: monotonic, as all
    used_s: float
    checked_s: float
    id: str  #: the hash of its token
    streams: int = 0  #: open streams of events

    @property
    def party(self) -> str:
        """The holder of its bounds: its key, or, without keys, the session itself."""
        return self.id if self.key is None else f"key {self.viewer.name}"

    def is_over(self, now_s: float) -> bool:
        """Whether it has ended by time. An open stream counts as use."""
        return now_s >= self.ends_s or (not self.streams and now_s >= self.used_s + IDLE_S)

    def check_csrf(self, token: str | None) -> None:
        """Raise DENIED unless the token is the session's."""
        given = (token or "").encode("utf-8", "surrogatepass")
        if not hmac.compare_digest(given, self.csrf.encode()):
            text = "the header X-CSRF-Token is missing or not that of this session; reload the page"
            raise AppError(ErrorCode.DENIED, text, needs="csrf")


class Sessions:
    """All open sessions, by the hash of their tokens: memory holds no usable token."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[str, Session] = {}
        self.places: Places[str] = Places(SESSIONS_OF_KEY_MAX, SESSIONS_MAX)

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> list[Session]:
        return list(self._open.values())

    def open(
        self, viewer: KeyRights, key: str | None, token: str | None = None
    ) -> tuple[str, Session]:
        """A new session, and its token: `token`, of which no session is open, or a random one."""
        now_s = self._clock.monotonic_s()
        token = secrets.token_urlsafe(_TOKEN_BYTES) if token is None else token
        session = Session(
            viewer=viewer,
            key=key,
            csrf=secrets.token_urlsafe(_TOKEN_BYTES),
            ends_s=now_s + LENGTH_S,
            used_s=now_s,
            checked_s=now_s,
            id=_hash(token),
        )
        self.drop_ended()
        gone = self.places.enter(session.party, session.id)
        if gone is not None:
            self._open.pop(gone, None)
        self._open[session.id] = session
        return token, session

    def find(self, token: str | None) -> Session | None:
        """The open session of a token; None for any other text."""
        found = None if token is None else self._open.get(_hash(token))
        if found is None:
            return None
        now_s = self._clock.monotonic_s()
        if found.is_over(now_s):
            self.close(found)
            return None
        found.used_s = now_s
        self.places.used(found.party, found.id)
        return found

    def is_open(self, session: Session) -> bool:
        """Whether the session has not ended."""
        return session.id in self._open and not session.is_over(self._clock.monotonic_s())

    def is_due(self, session: Session) -> bool:
        """Whether its key must be checked again; True once for each `CHECK_S`."""
        now_s = self._clock.monotonic_s()
        if session.key is None or now_s < session.checked_s + CHECK_S:
            return False
        session.checked_s = now_s
        return True

    def close(self, session: Session) -> None:
        """End a session; safe to repeat."""
        self._open.pop(session.id, None)
        self.places.leave(session.party, session.id)

    def drop_ended(self) -> None:
        now_s = self._clock.monotonic_s()
        for one in [one for one in self._open.values() if one.is_over(now_s)]:
            self.close(one)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


#: Of one key; above them its oldest one ends.
STREAMS_OF_KEY_MAX = 32
#: Of all; above them the oldest one ends of the key that has most.
STREAMS_MAX = 200


class Stream:
    """One open stream; who writes it looks whether it has to end."""

    def __init__(self) -> None:
        self.evicted = False


class Streams:
    """All open streams."""

    def __init__(self) -> None:
        self._places: Places[Stream] = Places(STREAMS_OF_KEY_MAX, STREAMS_MAX)

    def __len__(self) -> int:
        return len(self._places)

    @contextmanager
    def open(self, session: Session) -> Iterator[Stream]:
        """A place for one stream; an older one may have to end for it."""
        stream, party = Stream(), session.party
        gone = self._places.enter(party, stream)
        if gone is not None:
            gone.evicted = True
        session.streams += 1
        try:
            yield stream
        finally:
            session.streams -= 1
            self._places.leave(party, stream)
