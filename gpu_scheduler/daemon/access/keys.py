"""The keys file: the clients of the endpoints, by the hash of each key.

One JSON object, mode 0600, replaced atomically; `ssgmd keys add|list|revoke` writes it and a
running daemon reads it again when it changes. A key has 256 random bits, so its SHA-256 needs
neither salt nor many rounds. Without a keys file only programs of this machine are served (app.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from corekit.aio.files import replace_file
from corekit.decode import decode, encode
from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import Value, replace
from gpu_scheduler.daemon.access.sources import FileSecret, SecretSource
from gpu_scheduler.protocol.keys import KeyRole as KeyRole
from gpu_scheduler.protocol.keys import checked_name, name_of, new_key

NAME = "keys.json"
VERSION = 1


class KeyEntry(Value):
    """One key, without its secret."""

    name: str
    role: KeyRole
    sha256: str  #: hex, of the whole key
    #: Of a requester: the one tenant it requests for (None = any); of a reader: the tenant whose
    #: jobs it sees (None = none).
    tenant: str | None = None
    host: str | None = None  #: of a host: the one host it acts as; None = any
    made: str = ""  #: date, for people
    #: Of a requester: no request has a higher one, which would pass other tenants.
    priority_max: Annotated[int, Meta(ge=-100, le=100)] = 0

    def __post_init__(self) -> None:
        checked_name(self.name)
        if self.tenant is not None and self.role not in (KeyRole.REQUESTER, KeyRole.READER):
            raise invalid(f"key {self.name}: only a requester or reader is bound to a tenant")
        if self.host is not None and self.role is not KeyRole.HOST:
            raise invalid(f"key {self.name}: only a host's key is bound to a host")
        if self.priority_max != 0 and self.role is not KeyRole.REQUESTER:
            raise invalid(f"key {self.name}: only a requester has a highest priority")
        if len(self.sha256) != 64:
            raise invalid(f"key {self.name}: sha256 has {len(self.sha256)} characters, not 64")


#: The entries of a keys file by their names.
Keys = Mapping[str, KeyEntry]


def verified(key: str, entry_of: Callable[[str], KeyEntry | None]) -> KeyEntry | None:
    """The entry by the name of a key; None for one that is wrong, unknown or revoked.

    Takes constant time, so that the duration does not depend on how much of a secret is right.
    """
    entry = entry_of(name_of(key) or "")
    same = hmac.compare_digest(digest(key), "0" * 64 if entry is None else entry.sha256)
    return entry if same else None


def digest(key: str) -> str:
    """The hash of a key that the file stores."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


class _File(Value):
    """The JSON object of the file."""

    ssgmd_keys: int  #: version
    keys: tuple[KeyEntry, ...]


def read_keys(path: Path) -> Keys:
    """Read a keys file. Raises INVALID for any other file, DENIED for one that others may read."""
    return keys_in(FileSecret(path))


def keys_in(source: SecretSource) -> Keys:
    """The keys in the content of a source. Raises INVALID, and what `read` raises."""
    name = f"the keys file {source.name}"
    try:
        value = json.loads(source.read())
    except (ValueError, RecursionError) as error:  # without the text: it may be another secret
        reason = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "its text"
        raise invalid(f"cannot read {name}: {reason} is not JSON") from None
    file = decode(_File, value, source.name)
    if file.ssgmd_keys != VERSION:
        raise invalid(f"{name} has version {file.ssgmd_keys}; this ssgmd reads {VERSION}")
    by_name = {entry.name: entry for entry in file.keys}
    if len(by_name) != len(file.keys):
        raise invalid(f"{name} has two keys of one name")
    return by_name


def add_key(path: Path, entry: KeyEntry) -> str:
    """Add a new key with the name and rights of the entry, and return the key itself.

    Creates the file. Raises CONFLICT when there is a key of that name.
    """
    key = new_key(entry.name)
    with _changing(path) as keys:
        if any(known.name == entry.name for known in keys):
            text = f"there is a key {entry.name!r}; revoke it first, or choose another name"
            raise AppError(ErrorCode.CONFLICT, text)
        keys.append(replace(entry, sha256=digest(key)))
    return key


def revoke_key(path: Path, name: str) -> None:
    """Remove a key; a running daemon closes its connections within `keys_poll_s`.

    Raises NOT_FOUND.
    """
    with _changing(path) as keys:
        kept = [known for known in keys if known.name != name]
        if len(kept) == len(keys):
            raise AppError(ErrorCode.NOT_FOUND, f"{path} has no key {name!r}")
        keys[:] = kept


@contextlib.contextmanager
def _changing(path: Path) -> Iterator[list[KeyEntry]]:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        keys = list(read_keys(path).values()) if path.exists() else []
        yield keys
        file = encode(_File(ssgmd_keys=VERSION, keys=tuple(keys)))
        replace_file(path, json.dumps(file, indent=1).encode() + b"\n")
    finally:
        os.close(folder)
