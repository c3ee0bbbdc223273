"""The form of an API key of ssgmd: `<name>.<secret>`, as `ssgmd keys add` prints it.

The name identifies the key and may be logged; the secret must never be. A session of a keyed client
is called `<name>/<session>`, so no key can act as a session of another.
"""

from __future__ import annotations

import re
import secrets
from enum import StrEnum

from corekit.errors import invalid

#: Random bytes of a secret: 256 bits need no salt and no slow hash.
SECRET_BYTES = 32
NAME_RULE = "1 to 63 characters of a-z, 0-9, - and _, starting with a letter or digit"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_SECRET = re.compile(r"[A-Za-z0-9_-]{43}")


class KeyRole(StrEnum):
    """Rights of a key. Each of the first three includes the rights of those before it."""

    READER = "reader"  #: reads inventory, leases, queue, records, metrics, events
    REQUESTER = "requester"  #: requests devices and acts for jobs: orchestrators, `ssgm alloc`
    OPERATOR = "operator"  #: drain, forget, set, and every lease
    HOST = "host"  #: acts as a GPU host, and nothing else


def checked_name(name: str) -> str:
    """The name, if valid. Raises INVALID."""
    if not _NAME.fullmatch(name):
        raise invalid(f"{name!r} is not a valid key name; use {NAME_RULE}")
    return name


def new_key(name: str) -> str:
    """A new key with this name. Raises INVALID for an invalid name."""
    return f"{checked_name(name)}.{secrets.token_urlsafe(SECRET_BYTES)}"


def name_of(key: str) -> str | None:
    """The name in a key; None when the key is malformed. The secret is not checked here."""
    name, _, secret = key.partition(".")
    return name if _NAME.fullmatch(name) and _SECRET.fullmatch(secret) else None


def session_of(key_name: str, session: str) -> str:
    """The name, in the scheduler, of a session of a client with this key."""
    prefix = f"{key_name}/"
    return session if session.startswith(prefix) else prefix + session


def key_of(session: str | None) -> str:
    """The name of the key of a session; "" without a key."""
    name, slash, _ = (session or "").partition("/")
    return name if slash else ""
