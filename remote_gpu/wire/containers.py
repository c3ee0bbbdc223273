"""Messages between a run and its host, about the container of the run's order. Pure.

The host gives the run one end of a Unix socket that keeps messages apart (SOCK_SEQPACKET), and its
number in the runner's order (`container`). The run's messages:

    prepare  {"prepare": true}              have the image ready. Answers: {}, {"error": text}, or
             {"needs": {"bucket", "key"}}: an archive, whose descriptor the next prepare has
    start    {"start": {"workdir", "variables"}}   with two descriptors: the container's output,
             and one end of a socket of the same kind for the rest:

    signal   {"signal": 15}                 pass SIGTERM on
    ended    {"status", "out_of_memory", "error"}   the host's only answer

Its order has one container. When the other end of the second socket is closed, it is killed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from remote_gpu.wire.errors import WireError

MESSAGE_BYTES_MAX = 1 << 17  #: below the send buffer of a Unix socket
DESCRIPTORS = 2  #: with a start: output, and the socket of the container


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The run's part of its container; everything else is the order's."""

    workdir: str  #: absolute, as the container sees it
    variables: Mapping[str, str]

    def fields(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def of(cls, value: object) -> Start:
        """Decode; unknown fields are ignored. Raises WireError."""
        if not isinstance(value, dict) or not isinstance(value.get("workdir"), str):
            raise WireError("'start' must be an object with a workdir")
        variables = value.get("variables")
        if not isinstance(variables, dict) or not all(
            isinstance(text, str) for text in variables.values()
        ):
            raise WireError("'variables' must be an object of texts")
        return cls(workdir=value["workdir"], variables=variables)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a container."""

    status: int = 0  #: as podman returns it: 128 + n for signal n
    out_of_memory: bool = False
    error: str = ""  #: the reason why there was no container


def encoded(message: Mapping[str, object]) -> bytes:
    """A message as bytes. Raises WireError for one that is too long."""
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) > MESSAGE_BYTES_MAX:
        raise WireError(f"the variables take {len(data)} bytes, over {MESSAGE_BYTES_MAX}")
    return data


def decoded(data: bytes) -> dict[str, object]:
    """A message. Raises WireError."""
    try:
        message = json.loads(data)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise WireError("a message of a run is not a JSON object")
    return message


def ended_of(message: Mapping[str, object]) -> Ended:
    """Decode the host's answer. Raises WireError."""
    status, error = message.get("status", 0), message.get("error", "")
    if not isinstance(status, int) or not isinstance(error, str):
        raise WireError("the host's answer about a container is not valid")
    return Ended(status=status, error=error, out_of_memory=message.get("out_of_memory") is True)
