"""Sessions of browsers, in memory: each acts with the key that opened it, until it ends.

A session ends after `IDLE_S` without a request, after `LENGTH_S` in any case, when it is closed,
when its key is revoked, and with the server. The browser has a random token in a cookie that no
script can read; the key stays here. A change needs the session's CSRF token as well, which only a
page of this server can read.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

from corekit.aio.clock import Clock
from corekit.errors import AppError, ErrorCode
from orchgpu.web.model.places import Places
from orchgpu.web.model.viewers import Viewer

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

    viewer: Viewer
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
        """The sessions that are not known to have ended."""
        return list(self._open.values())

    def open(self, viewer: Viewer, key: str | None) -> tuple[str, Session]:
        """A new session, and its token."""
        now_s, token = self._clock.monotonic_s(), secrets.token_urlsafe(_TOKEN_BYTES)
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
        """Remove the sessions that ended by time."""
        now_s = self._clock.monotonic_s()
        for one in [one for one in self._open.values() if one.is_over(now_s)]:
            self.close(one)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
