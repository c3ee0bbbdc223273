"""The closed sets of codes on the wire, and their exceptions."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from enum import StrEnum


class Refusal(StrEnum):
    """The reason for refusing a connection, or for ending an open one."""

    CLAIMED = "CLAIMED"  #: another session holds the lease: this start is a duplicate
    NOT_INSTALLED = "NOT_INSTALLED"  #: the lease is not installed on the host, even after a wait
    NOT_READY = "NOT_READY"  #: installed, but the previous lease still holds the share
    DENIED = "DENIED"  #: the proof of the secret is wrong
    ENDED = "ENDED"  #: the lease has ended
    BUSY = "BUSY"  #: a limit on connections is reached
    PROTOCOL = "PROTOCOL"  #: a violation of the protocol
    TIMEOUT = "TIMEOUT"  #: an answer did not come in time
    UNREACHABLE = "UNREACHABLE"  #: no connection, or it broke


class OpCode(StrEnum):
    """The reason for the failure of an operation, named as in errno."""

    EINVAL = "EINVAL"  #: arguments or inputs are not valid; do not retry
    ENOENT = "ENOENT"  #: a named operation, model, data set or buffer does not exist
    ENOTSUP = "ENOTSUP"  #: known, but not implemented for this kind of device
    ENODEV = "ENODEV"  #: the device's driver is missing, or does not list the device
    ENOMEM = "ENOMEM"  #: the lease's memory quota would be exceeded
    E2BIG = "E2BIG"  #: too many or too large inputs or results for the operation or the frame
    ETIMEDOUT = "ETIMEDOUT"  #: the operation was ended after its caller's time limit
    EIO = "EIO"  #: the operation failed otherwise; see the message
    EPROTO = "EPROTO"  #: the frame violates the protocol


#: The number of every code.
ERRNO: Mapping[str, int] = {code: getattr(errno, code.value) for code in OpCode}


class WireError(Exception):
    """A violation of the protocol; ends its connection only."""


class RemoteError(Exception):
    """An error of the client's callers; `code` is for programs, the text for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Refused(RemoteError):
    """A gateway refused or is unreachable, or the session has ended (`Refusal` codes)."""


class OpFailed(RemoteError):
    """One operation failed (`OpCode` codes); the lane stays usable.

    `lacks`: of an ENOENT, the data set or program that this host does not have, and another host
    may have: `{"data": "proteins"}` or `{"programs": "blast"}`.
    """

    def __init__(self, code: str, message: str, lacks: Mapping[str, str] | None = None) -> None:
        super().__init__(code, message)
        self.lacks: Mapping[str, str] = lacks or {}

    @property
    def errno(self) -> int:
        """The number of `code`; EIO for a code of a newer version."""
        return ERRNO.get(self.code, errno.EIO)


def invalid(message: str) -> OpFailed:
    """The error of wrong arguments or inputs."""
    return OpFailed(OpCode.EINVAL, message)
