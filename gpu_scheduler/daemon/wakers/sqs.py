"""Wake-ups as messages of SQS: `sqs:URL`, the URL of the account's queues without their names.

On AWS it is `https://sqs.REGION.amazonaws.com/ACCOUNT`. Credentials are boto3's own: variables,
profile, or the role of the instance. Needed: `sqs:SendMessage`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoRegionError

from contract.aws.clients import patience, session_of
from contract.aws.faults import Fault, code_of, fault_of
from corekit.errors import AppError, ErrorCode, invalid
from gpu_scheduler.daemon.waker import Sender

_CONFIG = Config(**patience(tries=1, connect_s=3, read_s=5))
_REGION = re.compile(r"sqs\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?")


def open_sender(where: str) -> Sender:
    """Sends to queues below this URL. Raises INVALID."""
    parts = urlsplit(where)
    if parts.scheme not in ("http", "https") or not parts.path.strip("/"):
        raise invalid(
            f"--wake sqs:{where}: expected https://sqs.REGION.amazonaws.com/ACCOUNT behind sqs:"
        )
    region = _REGION.fullmatch(parts.hostname or "")
    try:
        client = session_of(None).client(
            "sqs",
            region_name=region[1] if region else None,
            endpoint_url=None if region else f"{parts.scheme}://{parts.netloc}",
            config=_CONFIG,
        )
    except (NoRegionError, ValueError) as error:
        raise invalid(f"--wake sqs:{where}: {error}") from None

    def send(queue: str, bodies: Sequence[str]) -> None:
        url = f"{where.rstrip('/')}/{queue}"
        entries = [{"Id": str(at), "MessageBody": body} for at, body in enumerate(bodies)]
        try:
            answer = client.send_message_batch(QueueUrl=url, Entries=entries)
        except ClientError as error:
            text = f"{url} answered {code_of(error)}"
            absent = fault_of(error) is Fault.ABSENT
            code = ErrorCode.NOT_FOUND if absent else ErrorCode.UNAVAILABLE
            raise AppError(code, text) from None
        except BotoCoreError as error:
            raise AppError(ErrorCode.UNAVAILABLE, f"{url}: {error}") from None
        if failed := answer.get("Failed"):
            text = f"{url} refused {len(failed)} of {len(bodies)}: {failed[0].get('Code')}"
            raise AppError(ErrorCode.UNAVAILABLE, text)

    return send
