"""The folder of a runner alone: the credentials of its function, which gpud renews there.

botocore reads them by `credential_process`, again before they expire. The folder is the lease's
user's, so gpud writes through a descriptor of it, and to new files only: no link leads elsewhere.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from remote_gpu.isolation.apply import Sandbox
from remote_gpu.isolation.run import PRIVATE_NAME, TMP_NAME
from remote_gpu.wire.runs import RunOrder

_CREDENTIALS, _CONFIG = "credentials.json", "config"
_KEY, _SECRET, _TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class PrivateFolder:
    """Made in a new sandbox, before a process has it; `close` it."""

    def __init__(self, sandbox: Sandbox) -> None:
        """Raises OSError."""
        self._owner = sandbox.user, sandbox.group
        whole = Path(sandbox.folder)
        for name in (PRIVATE_NAME, TMP_NAME):
            (whole / name).mkdir(mode=0o700)
            os.chown(whole / name, *self._owner)
        self._path = whole / PRIVATE_NAME
        self._folder = os.open(self._path, _FOLDER)

    def write(self, order: RunOrder) -> None:
        """Write the order's credentials, in place of earlier ones. Raises OSError."""
        if _KEY in order.aws:
            self._put(_CREDENTIALS, json.dumps(_credentials(order)))
            command = f"/bin/cat {self._path / _CREDENTIALS}"
            self._put(_CONFIG, f"[default]\ncredential_process = {command}\n")
        else:
            self._put(_CONFIG, "[default]\n")

    def variables(self, order: RunOrder) -> dict[str, str]:
        """AWS's variables for the runner: none of them is secret."""
        given = {name: v for name, v in order.aws.items() if name not in (_KEY, _SECRET, _TOKEN)}
        return given | {
            "AWS_CONFIG_FILE": str(self._path / _CONFIG),
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",  # those are the host's own
        }

    def close(self) -> None:
        """Idempotent."""
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def _put(self, name: str, text: str) -> None:
        fresh = secrets.token_hex(8)
        file = os.open(fresh, _NEW, 0o600, dir_fd=self._folder)
        with os.fdopen(file, "w", encoding="utf-8") as stream:
            os.fchown(file, *self._owner)
            stream.write(text)
        os.rename(fresh, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)


def has_credentials(order: RunOrder) -> bool:
    """True for an order with a key and its secret."""
    return bool(order.aws.get(_KEY) and order.aws.get(_SECRET))


def session_variables(order: RunOrder) -> Mapping[str, str]:
    """The order's credentials and region, by botocore's names of arguments."""
    names = {
        "aws_access_key_id": _KEY,
        "aws_secret_access_key": _SECRET,
        "aws_session_token": _TOKEN,
        "region_name": "AWS_REGION",
    }
    return {argument: order.aws[name] for argument, name in names.items() if name in order.aws}


def _credentials(order: RunOrder) -> dict[str, object]:
    """In the form of botocore's `credential_process`."""
    found: dict[str, object] = {
        "Version": 1,
        "AccessKeyId": order.aws[_KEY],
        "SecretAccessKey": order.aws.get(_SECRET, ""),
    }
    if token := order.aws.get(_TOKEN):
        found["SessionToken"] = token
    if order.credentials_end_s:
        end = datetime.fromtimestamp(order.credentials_end_s, UTC)
        found["Expiration"] = end.strftime("%Y-%m-%dT%H:%M:%SZ")
    return found
