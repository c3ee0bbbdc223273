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


#: Codes with another status than 400.
_STATUS = {
    code: status
    for status, codes in {
        403: "AccessDenied OverLimit",
        404: "NoSuchBucket NoSuchEntity NoSuchKey NoSuchUpload NoSuchVersion",
        405: "MethodNotAllowed",
        409: "BucketAlreadyOwnedByYou BucketNotEmpty ConditionalRequestConflict DeleteConflict"
        " EntityAlreadyExists OperationAborted ResourceConflictException",
        411: "MissingContentLength",
        412: "PreconditionFailed",
        413: "RequestEntityTooLargeException RequestTooLargeException",
        416: "InvalidPartNumber InvalidRange",
        429: "TooManyRequestsException",
        500: "InternalError ServiceException",
        501: "NotImplemented",
        502: "ResourceNotReadyException",
        503: "SlowDown",
    }.items()
    for code in codes.split()
}


def refused(
    code: str,
    message: str,
    *,
    headers: Mapping[str, str] | None = None,
    details: Mapping[str, str] | None = None,
) -> CloudError:
    """A refusal with the status that AWS documents for the code."""
    return CloudError(code, _STATUS.get(code, 400), message, headers=headers, details=details)


def not_implemented(what: str) -> CloudError:
    """A real AWS call that this cloud does not have."""
    return refused("NotImplemented", f"{what} is not part of the embedded cloud")
