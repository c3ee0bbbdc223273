"""Repetition of calls whose answer passes by itself: one table, applied to every call of a client.

AWS is eventually consistent: a role that IAM has made is unknown to other services for some
seconds, a function that is being made or changed refuses changes, SQS keeps the name of a deleted
queue for a minute. Each answer is known by its code and a part of its text; every other one is
raised at once. Codes and texts: the API references of each service, and the retries of
terraform-provider-aws (`lambda/function.go`, `s3/bucket.go`, `iam/role.go`, `logs/group.go`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from botocore.exceptions import ClientError

from corekit.values import Value
from orchgpu.adapters.aws.api import AwsClient, Client, Shape

SETTLE_S_MAX = 120.0  #: for most answers; AWS's own limits are 60 s
PENDING_S_MAX = 300.0  #: a function in a VPC is Pending for minutes
FRESH_S_MAX = 60.0  #: for answers that a resource does not exist, which this client has just made
PAUSE_S = 1.0  #: before the first repetition, doubled up to the next
PAUSE_S_MAX = 8.0


class Transient(Value):
    """One answer that passes by itself."""

    calls: tuple[str, ...]  #: `service:Operation`; the operation `*` stands for all
    code: str  #: of the error
    text: str = ""  #: a part of its message
    limit_s: float = SETTLE_S_MAX  #: from the first call on
    #: Only while less than `limit_s` has passed since this client called one of these operations
    #: on the same resource.
    after: tuple[str, ...] = ()


#: The calls that check a function's role, and (the first two) its network and its key.
_TAKE_ROLE = (
    "lambda:CreateFunction",
    "lambda:UpdateFunctionConfiguration",
    "lambda:PutFunctionEventInvokeConfig",
)
_INVALID = "InvalidParameterValueException"
_CONFLICT = "ResourceConflictException"

TRANSIENTS = (
    # a new role: unknown to Lambda, or its policy is, or a key does not know it
    Transient(calls=_TAKE_ROLE, code=_INVALID, text="cannot be assumed by Lambda"),
    Transient(calls=_TAKE_ROLE, code=_INVALID, text="does not have permissions to call"),
    Transient(calls=_TAKE_ROLE[:2], code=_INVALID, text="KMS key is invalid for CreateGrant"),
    Transient(calls=_TAKE_ROLE[:2], code=_INVALID, text="throttled by EC2", limit_s=PENDING_S_MAX),
    Transient(
        calls=("scheduler:CreateSchedule", "scheduler:UpdateSchedule"),
        code="ValidationException",
        text="to assume the role",
    ),
    # a function that is Pending or has an update InProgress, and two changes of its policy at
    # once; not "already exists", which has the same code
    *(
        Transient(calls=("lambda:*",), code=_CONFLICT, text=text, limit_s=PENDING_S_MAX)
        for text in ("cannot be performed at this time", "concurrent update", "in progress")
    ),
    Transient(
        calls=("lambda:*",),
        code="ResourceNotFoundException",
        text="Function not found",  # not its policy, or its treatment of failed events
        limit_s=FRESH_S_MAX,
        after=("CreateFunction",),
    ),
    # two changes of a bucket at once, or its name just after its removal; two conditional writes
    Transient(calls=("s3:*",), code="OperationAborted"),
    Transient(calls=("s3:PutObject",), code="ConditionalRequestConflict"),
    Transient(calls=("s3:*",), code="NoSuchBucket", limit_s=FRESH_S_MAX, after=("CreateBucket",)),
    # a bucket's new target, whose policy S3 does not see yet: SQS's attributes take up to 60 s
    Transient(
        calls=("s3:PutBucketNotificationConfiguration",),
        code="InvalidArgument",
        text="Unable to validate the following",
    ),
    # a role that IAM itself does not see everywhere yet, or still sees with the policy it had
    Transient(
        calls=("iam:*",),
        code="NoSuchEntity",
        text="The role with name",  # not its policy
        limit_s=FRESH_S_MAX,
        after=("CreateRole",),
    ),
    Transient(calls=("iam:*",), code="ConcurrentModification"),
    Transient(
        calls=("iam:DeleteRole",),
        code="DeleteConflict",
        limit_s=FRESH_S_MAX,
        after=("DeleteRolePolicy",),
    ),
    # Lambda makes the log group at the same moment
    Transient(calls=("logs:*",), code="OperationAbortedException"),
    Transient(
        calls=("logs:PutRetentionPolicy",),
        code="ResourceNotFoundException",
        limit_s=FRESH_S_MAX,
        after=("CreateLogGroup",),
    ),
    # a name that was deleted less than 60 s ago, a queue that was made a moment ago; SQS's two
    # protocols have codes of their own
    *(
        Transient(calls=("sqs:CreateQueue",), code=code)
        for code in ("QueueDeletedRecently", "AWS.SimpleQueueService.QueueDeletedRecently")
    ),
    *(
        Transient(calls=("sqs:*",), code=code, limit_s=FRESH_S_MAX, after=("CreateQueue",))
        for code in ("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue")
    ),
    # more calls than the account may make, after botocore's own repetitions
    *(
        Transient(calls=(f"{service}:*",), code=code)
        for service, code in (
            ("lambda", "TooManyRequestsException"),
            ("s3", "SlowDown"),
            ("iam", "Throttling"),
            ("logs", "ThrottlingException"),
            ("sqs", "RequestThrottled"),
            ("ec2", "RequestLimitExceeded"),
            ("scheduler", "ThrottlingException"),
        )
    ),
)
#: The parameters that name the resource of a call.
_NAMES = ("Bucket", "FunctionName", "RoleName", "logGroupName", "QueueName", "QueueUrl")


class Settling:
    """Makes clients that repeat calls until AWS has settled."""

    def __init__(
        self,
        *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sleep = sleep
        self._monotonic = monotonic

    def client(self, client: Client) -> AwsClient:
        """The same client; its calls are repeated after the answers of `TRANSIENTS`.

        A call fails with any other answer at once, and with the last of these after its limit.
        Paginators are left to botocore's own repetitions: they only read.
        """
        return AwsClient(_SettledClient(client, self._sleep, self._monotonic))


class _SettledClient:
    """A client of botocore whose operations are repeated; it remembers when it called each."""

    def __init__(
        self, client: Client, sleep: Callable[[float], None], monotonic: Callable[[], float]
    ) -> None:
        self._client = client
        self._sleep = sleep
        self._monotonic = monotonic
        self._service = str(client.meta.service_model.service_name)
        self._called_s: dict[tuple[str, str], float] = {}  #: (operation, resource) → time

    @property
    def at_once(self) -> Client:
        return self._client

    def __getattr__(self, name: str) -> Any:
        """An operation, or any other attribute of the client, which botocore makes at run time."""
        found = getattr(self._client, name)
        operation = self._client.meta.method_to_api_mapping.get(name)
        return found if operation is None else partial(self._call, operation, found)

    def _call(self, operation: str, method: Callable[..., Shape], **parameters: Any) -> Shape:
        begun_s, pause_s, resource = self._monotonic(), PAUSE_S, _resource_of(parameters)
        self._remember(operation, resource)
        while True:
            try:
                return method(**parameters)
            except ClientError as error:
                now_s = self._monotonic()
                limit_s = max(
                    (
                        one.limit_s
                        for one in TRANSIENTS
                        if self._is(one, error, operation, resource)
                    ),
                    default=0.0,
                )
                if now_s + pause_s - begun_s > limit_s:
                    raise
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _remember(self, operation: str, resource: str) -> None:
        self._called_s[operation, resource] = self._monotonic()
        if operation.startswith("Delete"):  # from now on it is rightly absent
            self._called_s.pop((operation.replace("Delete", "Create", 1), resource), None)

    def _is(self, one: Transient, error: ClientError, operation: str, resource: str) -> bool:
        body = error.response.get("Error", {})
        given = one.code == body.get("Code", "") and one.text in str(body.get("Message", ""))
        called = {f"{self._service}:{operation}", f"{self._service}:*"} & set(one.calls)
        earlier_s = (self._called_s.get((name, resource)) for name in one.after)
        now_s = self._monotonic()
        recent = any(at_s is not None and now_s - at_s <= one.limit_s for at_s in earlier_s)
        return given and bool(called) and (recent or not one.after)


def _resource_of(parameters: Mapping[str, Any]) -> str:
    named = (str(parameters[name]) for name in _NAMES if name in parameters)
    return next(named, "").rpartition("/")[2]
