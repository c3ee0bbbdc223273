"""A call that the cloud refuses, with the code AWS documents for it."""

from __future__ import annotations


class CloudError(Exception):
    """A refused call: the modelled error code, the HTTP status and AWS's message."""

    def __init__(self, code: str, status: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.status = status
        self.message = message

    def __reduce__(self) -> tuple[type[CloudError], tuple[str, int, str]]:
        return (CloudError, (self.code, self.status, self.message))


def refused(code: str, message: str, status: int = 400) -> CloudError:
    """Shorthand for the usual refusal, which is a 400."""
    return CloudError(code, status, message)


def not_implemented(what: str) -> CloudError:
    """A real AWS call that this cloud does not have."""
    return CloudError("NotImplemented", 501, f"{what} is not part of the embedded cloud")
