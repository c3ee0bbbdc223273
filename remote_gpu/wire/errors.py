"""Closed sets of codes that cross the wire, and the one exception for each side of them."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from enum import StrEnum


class Refusal(StrEnum):
    """Why a gateway does not let a connection in, or why an open one ended."""

    CLAIMED = "CLAIMED"  #: another session holds the lease: this start is a duplicate
    NOT_INSTALLED = "NOT_INSTALLED"  #: the host does not know the lease, even after a wait
    NOT_READY = "NOT_READY"  #: installed, but the lease before it still holds the share
    DENIED = "DENIED"  #: the proof of the secret is wrong
    ENDED = "ENDED"  #: the lease is over
    BUSY = "BUSY"  #: a limit on connections is reached
    PROTOCOL = "PROTOCOL"  #: bytes that are not ours
    TIMEOUT = "TIMEOUT"  #: an answer did not come in time
    UNREACHABLE = "UNREACHABLE"  #: no connection, or it broke


class OpCode(StrEnum):
    """Why an operation failed; the words of errno where it has one."""

    EINVAL = "EINVAL"  #: arguments or inputs are wrong; repeating cannot help
    ENOENT = "ENOENT"  #: a named operation, model, data set or buffer does not exist
    ENOTSUP = "ENOTSUP"  #: known, but not implemented for this kind of device
    ENODEV = "ENODEV"  #: the device's driver is not there, or does not show the device
    ENOMEM = "ENOMEM"  #: the lease's memory quota would be exceeded
    E2BIG = "E2BIG"  #: more or larger inputs or results than the operation or the frame takes
    ETIMEDOUT = "ETIMEDOUT"  #: the operation took longer than its caller allowed, and was ended
    EIO = "EIO"  #: the operation broke; the message says how
    EPROTO = "EPROTO"  #: the frame was not understood


#: The number of every code, for callers that think in C: the set is closed.
ERRNO: Mapping[str, int] = {code: getattr(errno, code.value) for code in OpCode}


class WireError(Exception):
    """Bytes that break the protocol: the connection ends, nothing else is disturbed."""


class RemoteError(Exception):
    """What a caller of the client sees; `code` is for programs, the text for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Refused(RemoteError):
    """The gateway said no, or could not be reached, or the session is over (`Refusal` codes)."""


class OpFailed(RemoteError):
    """One operation failed (`OpCode` codes); the lane stays usable."""

    @property
    def errno(self) -> int:
        """The number of `code`; EIO for a code that this version does not know."""
        return ERRNO.get(self.code, errno.EIO)
