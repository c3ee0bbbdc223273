"""The start of the user's code behind a command of the host that restricts it.

On a host (`on_host`) the user's code loses rights that the runner has. The host's command takes a
descriptor with the environment as JSON, and becomes the user's command: so that none of the user's
variables, such as LD_PRELOAD, has an effect before the restriction.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

#: The host's command; empty in Lambda. One per process by nature, like the S3 client.
COMMAND: list[str] = []
#: That the host's command inherits.
DESCRIPTORS: list[int] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start: arguments of `subprocess.Popen`."""

    command: Sequence[str]
    environment: dict[str, str]
    descriptors: tuple[int, ...] = ()


@contextlib.contextmanager
def prepared(command: Sequence[str], variables: Mapping[str, str]) -> Iterator[Start]:
    """The start of a command with these variables, valid while the block runs. Raises OSError."""
    if not COMMAND:
        yield Start(command=command, environment=dict(variables))
        return
    given = os.memfd_create("environment")
    try:
        with open(given, "w", encoding="utf-8", errors="surrogateescape", closefd=False) as file:
            json.dump(dict(variables), file)
        os.lseek(given, 0, os.SEEK_SET)
        yield Start(
            command=[*COMMAND, str(given), *command],
            environment={},
            descriptors=(given, *DESCRIPTORS),
        )
    finally:
        os.close(given)
