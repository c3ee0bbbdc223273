"""A call that the cloud refuses, with the code AWS documents for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping


class CloudError(Exception):
    """A refused call: the modelled error code, the HTTP status and AWS's message.

    `headers` go with the answer; `details` are further fields of the error document.
    """

    def __init__(
        self,
        code: str,
        status: int,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        details: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.status = status
        self.message = message
        self.headers = dict(headers or {})
        self.details = dict(details or {})

    def __reduce__(self) -> tuple[Callable[..., CloudError], tuple[object, ...]]:
        return (_again, (self.code, self.status, self.message, self.headers, self.details))


def _again(
    code: str, status: int, message: str, headers: dict[str, str], details: dict[str, str]
) -> CloudError:
    return CloudError(code, status, message, headers=headers, details=details)


def refused(code: str, message: str, status: int = 400) -> CloudError:
    """Shorthand for the usual refusal, which is a 400."""
    return CloudError(code, status, message)


def not_implemented(what: str) -> CloudError:
    """A real AWS call that this cloud does not have."""
    return CloudError("NotImplemented", 501, f"{what} is not part of the embedded cloud")
