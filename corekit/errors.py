"""The one error type that crosses our boundaries, and its closed set of codes.

Library exceptions stop at the adapter of the library; beyond it there is only `AppError`.
A CLI turns a code into an exit status (`EXIT_STATUS`) and one line for people.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class ErrorCode(StrEnum):
    """The kind of a failure, which decides the caller's next step."""

    INVALID = "invalid"  #: the caller's input is wrong; repeating it cannot help
    NOT_FOUND = "not_found"  #: the named thing does not exist
    CONFLICT = "conflict"  #: another client changed it first; read again and decide again
    DENIED = "denied"  #: the caller may not do this
    EXHAUSTED = "exhausted"  #: a limit or capacity is used up; later it may work
    IMPOSSIBLE = "impossible"  #: no known capacity could ever do this
    UNAVAILABLE = "unavailable"  #: the other side does not answer; repeat with a back-off
    TIMEOUT = "timeout"  #: an answer did not come in time; the call may have happened
    INTERNAL = "internal"  #: internal error


#: Exit status of every command for every code (docs/reference/exit-codes.md); 0 is success.
EXIT_STATUS: Mapping[ErrorCode, int] = {
    ErrorCode.INTERNAL: 1,
    ErrorCode.INVALID: 2,
    ErrorCode.NOT_FOUND: 3,
    ErrorCode.CONFLICT: 4,
    ErrorCode.DENIED: 5,
    ErrorCode.EXHAUSTED: 6,
    ErrorCode.IMPOSSIBLE: 7,
    ErrorCode.UNAVAILABLE: 8,
    ErrorCode.TIMEOUT: 9,
}

#: The status of every code in every HTTP API of ours.
HTTP_STATUS: Mapping[ErrorCode, int] = {
    ErrorCode.INVALID: 400,
    ErrorCode.DENIED: 403,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.CONFLICT: 409,
    ErrorCode.IMPOSSIBLE: 422,
    ErrorCode.EXHAUSTED: 429,
    ErrorCode.INTERNAL: 500,
    ErrorCode.UNAVAILABLE: 503,
    ErrorCode.TIMEOUT: 504,
}

_RETRYABLE = frozenset({ErrorCode.EXHAUSTED, ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT})


class AppError(Exception):
    """An expected failure: a code for programs, a sentence for people, details as data.

    The message names the problem, the place, and the remedy.
    """

    def __init__(self, code: ErrorCode, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details: dict[str, Any] = details

    @property
    def exit_status(self) -> int:
        """Exit status of a program that this error ends."""
        return EXIT_STATUS[self.code]

    @property
    def retryable(self) -> bool:
        """True when the same call, unchanged, may succeed later."""
        return self.code in _RETRYABLE

    def as_json(self) -> dict[str, Any]:
        """The wire form; `from_json` is its inverse."""
        return {"code": self.code.value, "message": self.message, "details": self.details}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> AppError:
        """Rebuild an error that came over a wire; an unknown code becomes INTERNAL."""
        try:
            code = ErrorCode(str(value.get("code")))
        except ValueError:
            code = ErrorCode.INTERNAL
        details = value.get("details")
        return cls(
            code,
            str(value.get("message", "no message")),
            **(details if isinstance(details, dict) else {}),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self.as_json(),))


def _rebuild(value: Mapping[str, Any]) -> AppError:
    return AppError.from_json(value)


def invalid(message: str, **details: Any) -> AppError:
    """Shorthand for the most common error: the caller's input is wrong."""
    return AppError(ErrorCode.INVALID, message, **details)
