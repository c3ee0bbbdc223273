"""The key pair of a cloud that verifies signatures: of the environment, or kept in a file.

The file lies in the state directory, readable by its owner alone; a pair is generated when there is
none, and stays the same over restarts.
"""

from __future__ import annotations

import json
import os
import secrets
import string
from collections.abc import Mapping
from pathlib import Path

from corekit.errors import invalid
from corekit.values import Value

ACCESS_KEY_VARIABLE = "LOCAL_CLOUD_ACCESS_KEY_ID"
SECRET_KEY_VARIABLE = "LOCAL_CLOUD_SECRET_ACCESS_KEY"  # noqa: S105 - a name
FILE_NAME = "credentials.json"


class KeyPair(Value):
    """An access key and its secret."""

    access_key: str
    secret_key: str


def key_pair(state: Path, environment: Mapping[str, str]) -> KeyPair:
    """The pair of the environment, else the one in the state directory, made if it is missing.

    Raises INVALID for half a pair, and for a file that holds no pair.
    """
    access_key = environment.get(ACCESS_KEY_VARIABLE, "")
    secret_key = environment.get(SECRET_KEY_VARIABLE, "")
    if bool(access_key) != bool(secret_key):
        raise invalid(f"set both {ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE}, or neither")
    if access_key:
        return KeyPair(access_key=access_key, secret_key=secret_key)
    path = state / FILE_NAME
    return _read(path) if path.exists() else _made(path)


def _read(path: Path) -> KeyPair:
    try:
        value = json.loads(path.read_text())
        pair = KeyPair(access_key=str(value["access_key"]), secret_key=str(value["secret_key"]))
    except (ValueError, KeyError, TypeError):
        raise invalid(
            f"{path} holds no key pair; write access_key and secret_key as JSON, or delete the file"
        ) from None
    return pair


def _made(path: Path) -> KeyPair:
    letters = string.ascii_uppercase + string.digits
    pair = KeyPair(
        access_key="LKIA" + "".join(secrets.choice(letters) for _ in range(16)),
        secret_key=secrets.token_urlsafe(30),
    )
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = json.dumps({"access_key": pair.access_key, "secret_key": pair.secret_key})
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, "w") as stream:
        stream.write(text + "\n")
    return pair
