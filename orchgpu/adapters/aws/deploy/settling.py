"""Repetition of a call whose answer is that a resource is not visible, or not settled, yet.

AWS is eventually consistent: a role that IAM has made is unknown to other services for some
seconds, a function that is being made or changed refuses changes, SQS keeps the name of a deleted
queue for a minute and takes up to a minute for attributes. Each answer is known by its code and a
part of its text; every other one is raised at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from botocore.exceptions import ClientError

from corekit.values import Value

T = TypeVar("T")

#: AWS's own limits are 60 s; after this the answer is raised.
SETTLE_S_MAX = 120.0
PAUSE_S = 1.0  #: before the first repetition, doubled up to the next
PAUSE_S_MAX = 8.0


class Unsettled(Value):
    """One answer that passes by itself."""

    code: str  #: of the error
    text: str  #: a part of its message; "" = the code is enough


#: A new role: Lambda cannot take it yet, or does not see its policy yet.
NEW_ROLE = (
    Unsettled(code="InvalidParameterValueException", text="cannot be assumed by Lambda"),
    Unsettled(code="InvalidParameterValueException", text="does not have permissions to call"),
)
#: A role that IAM itself does not see everywhere yet, just after it has made it.
UNSEEN_ROLE = (Unsettled(code="NoSuchEntity", text="cannot be found"),)
#: A function that is Pending or has an update InProgress, and two changes of its policy at once.
#: Not "already exists", which has the same code.
BUSY_FUNCTION = (
    Unsettled(code="ResourceConflictException", text="cannot be performed at this time"),
    Unsettled(code="ResourceConflictException", text="concurrent update operation"),
    Unsettled(code="ResourceConflictException", text="in progress"),
    Unsettled(code="TooManyRequestsException", text=""),
)
#: Two calls that change a bucket's settings at once, or its name just after its removal.
BUSY_BUCKET = (Unsettled(code="OperationAborted", text=""),)
#: Two conditional writes of one object at once.
RACED_WRITE = (Unsettled(code="ConditionalRequestConflict", text=""),)
#: A name that was deleted less than 60 s ago; the code has a prefix in SQS's query protocol.
DELETED_QUEUE = (
    Unsettled(code="AWS.SimpleQueueService.QueueDeletedRecently", text=""),
    Unsettled(code="QueueDeletedRecently", text=""),
)
#: A bucket's new target, whose policy S3 does not see yet: SQS's attributes take up to 60 s.
NEW_TARGET = (Unsettled(code="InvalidArgument", text="Unable to validate the following"),)


class Settling:
    """Repeats calls until AWS has settled."""

    def __init__(
        self,
        limit_s: float = SETTLE_S_MAX,
        *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit_s = limit_s
        self._sleep = sleep
        self._monotonic = monotonic

    def settled(self, call: Callable[[], T], *answers: Unsettled) -> T:
        """The value of `call`, repeated after each of these answers.

        Raises any other ClientError at once, and the last of these after the limit.
        """
        ends_s, pause_s = self._monotonic() + self._limit_s, PAUSE_S
        while True:
            try:
                return call()
            except ClientError as error:
                if not _is_one_of(error, answers) or self._monotonic() + pause_s > ends_s:
                    raise
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)


def _is_one_of(error: ClientError, answers: tuple[Unsettled, ...]) -> bool:
    body = error.response.get("Error", {})
    code, text = str(body.get("Code", "")), str(body.get("Message", ""))
    return any(code == one.code and one.text in text for one in answers)
