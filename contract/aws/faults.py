"""The errors of AWS: one table, which each program turns into its own kinds of error."""

from __future__ import annotations

from enum import Enum

from botocore import exceptions


class Fault(Enum):
    """The kind of a failed call."""

    ABSENT = "absent"
    CONFLICT = "conflict"  #: the condition of a write does not hold, or a thing exists already
    RACED = "raced"  #: two conditional writes met; S3 asks to repeat the call
    DENIED = "denied"
    EXHAUSTED = "exhausted"  #: more calls than the account may make
    REFUSED = "refused"  #: not valid, or in a state that a repetition does not change
    TIMEOUT = "timeout"
    UNAVAILABLE = "unavailable"  #: a fault of the service or of the network


_CODES = {
    Fault.ABSENT: (
        *("NoSuchKey", "NoSuchVersion", "NoSuchBucket", "NoSuchEntity", "404"),
        *("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"),
        *("ResourceNotFoundException", "ParameterNotFound", "ParameterVersionNotFound"),
    ),
    Fault.CONFLICT: (
        *("PreconditionFailed", "412", "BucketNotEmpty", "BucketAlreadyOwnedByYou"),
        *("ResourceExistsException", "ResourceAlreadyExistsException", "EntityAlreadyExists"),
    ),
    Fault.RACED: ("ConditionalRequestConflict",),
    Fault.DENIED: (
        *("AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "403"),
        *("InvalidAccessKeyId", "InvalidClientTokenId", "SignatureDoesNotMatch"),
        *("UnrecognizedClientException", "ExpiredToken", "ExpiredTokenException"),
        "KMSAccessDeniedException",
    ),
    Fault.EXHAUSTED: (
        *("OverLimit", "SlowDown", "RequestThrottled", "Throttling", "ThrottlingException"),
        *("TooManyRequestsException", "RequestLimitExceeded", "LimitExceededException"),
        "ProvisionedThroughputExceededException",
    ),
    Fault.UNAVAILABLE: (
        *("InternalError", "InternalServerError", "InternalFailure", "500"),
        *("ServiceUnavailable", "503", "RequestTimeout"),
        *("OperationAborted", "TransactionConflictException", "ResourceInUseException"),
    ),
}
_FAULTS = {code: fault for fault, codes in _CODES.items() for code in codes}
_TIMEOUTS = (exceptions.ReadTimeoutError, exceptions.ConnectTimeoutError)
_WITHOUT_KEYS = (exceptions.NoCredentialsError, exceptions.PartialCredentialsError)
#: No answer, or half of one; the role of a machine is asked for by HTTP, too.
_UNANSWERED = (
    exceptions.ConnectionError,
    exceptions.HTTPClientError,
    exceptions.IncompleteReadError,
    exceptions.CredentialRetrievalError,
    exceptions.MetadataRetrievalError,
    OSError,
)


def fault_of(error: Exception) -> Fault:
    """The kind of an error that a call raised."""
    if isinstance(error, exceptions.ClientError):
        return _fault_of_answer(code_of(error), status_of(error))
    if isinstance(error, _TIMEOUTS):
        return Fault.TIMEOUT
    if isinstance(error, _WITHOUT_KEYS):
        return Fault.DENIED
    return Fault.UNAVAILABLE if isinstance(error, _UNANSWERED) else Fault.REFUSED


def code_of(error: exceptions.ClientError) -> str:
    """AWS's code of an error."""
    return str(error.response.get("Error", {}).get("Code", ""))


def status_of(error: exceptions.ClientError) -> int:
    """The HTTP status of an error."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _fault_of_answer(code: str, status: int) -> Fault:
    if code in _FAULTS:
        return _FAULTS[code]
    if status == 404 or code.endswith(".NotFound"):  # InvalidSubnetID.NotFound, …: EC2's have 400
        return Fault.ABSENT
    return Fault.UNAVAILABLE if status >= 500 or status == 429 else Fault.REFUSED
