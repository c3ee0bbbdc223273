"""The calls of checks, performed by boto3: read-only ones, each of them once."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable

from botocore import xform_name
from botocore.exceptions import BotoCoreError, ClientError

from corekit.errors import AppError, invalid
from orchgpu.adapters.aws.api import Client, Shape
from orchgpu.adapters.aws.endpoints import ClientSettings, boto3_client, boto3_session
from orchgpu.inspection.model import DOCUMENT, READING, Answer, Call, Reason, Refusal

#: A person waits: a service that does not answer is reported within seconds.
_PATIENCE: Shape = {
    "retries": {"mode": "standard", "total_max_attempts": 2},
    "connect_timeout": 5,
    "read_timeout": 20,
}
_DENIED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "403", "Forbidden")
_UNSUPPORTED = ("InvalidAction", "NotImplemented", "UnknownOperationException", "501")
#: Parts of codes for a resource that does not exist: InvalidSubnetID.NotFound, NoSuchEntity, …
_ABSENT = ("NotFound", "NoSuch", "NonExistent", "DoesNotExist", "404")
#: The configuration of an image has a few kilobytes.
_DOCUMENT_BYTES_MAX = 1 << 20


class Reader:
    """`Fetch` of one account and region; close it after use."""

    def __init__(self, settings: Callable[[str], ClientSettings]) -> None:
        self._settings = settings
        self._session = boto3_session(settings("sts"))
        self._clients: dict[str, Client] = {}
        self._known: dict[str, Answer | Refusal] = {}

    def __call__(self, call: Call) -> Answer:
        """The answer, all its pages in one. Raises Refusal."""
        if not call.operation.startswith(READING):
            raise invalid(f"{call.action} may change something; a check only reads")
        key = json.dumps([call.service, call.operation, call.arguments], sort_keys=True)
        if key not in self._known:
            try:
                self._known[key] = self._answer(call)
            except Refusal as refusal:
                self._known[key] = refusal
        known = self._known[key]
        if isinstance(known, Refusal):
            raise known
        return known

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            client.close()

    def _answer(self, call: Call) -> Answer:
        try:
            if call.service == DOCUMENT:
                return _document(str(call.arguments["Url"]))
            client, method = self._client(call.service), xform_name(call.operation)
            if client.can_paginate(method):
                pages = client.get_paginator(method).paginate(**call.arguments)
                found: Answer = pages.build_full_result()
                return found
            answer: Answer = getattr(client, method)(**call.arguments)
            return answer
        except ClientError as error:
            raise _refusal(call, error, local=self._settings(call.service).local) from error
        except (BotoCoreError, OSError, ValueError) as error:
            name = type(error).__name__
            raise Refusal(call, Reason.FAILED, name, str(error)) from error
        except AppError as error:
            raise Refusal(call, Reason.FAILED, error.code.value, error.message) from error

    def _client(self, service: str) -> Client:
        if service not in self._clients:
            settings = self._settings(service)
            self._clients[service] = boto3_client(
                service, settings, session=self._session, **_PATIENCE
            )
        return self._clients[service]


def _refusal(call: Call, error: ClientError, *, local: bool) -> Refusal:
    body = error.response.get("Error", {})
    code, message = str(body.get("Code", "?")), str(body.get("Message", "")).strip()
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if local and message.startswith("<"):  # the page of a web framework: moto lacks the call
        return Refusal(call, Reason.UNSUPPORTED, code, "not implemented")
    return Refusal(call, _reason(code, status), code, message)


def _reason(code: str, status: int) -> Reason:
    if code in _DENIED:
        return Reason.DENIED
    if code in _UNSUPPORTED or status == 501:
        return Reason.UNSUPPORTED
    if any(part in code for part in _ABSENT) or status == 404:
        return Reason.ABSENT
    return Reason.FAILED


def _document(url: str) -> Answer:
    """A JSON document behind a presigned URL. Raises OSError, ValueError."""
    if not url.startswith("https://"):
        raise ValueError(f"{url[:40]}… is not an HTTPS address")
    with urllib.request.urlopen(url, timeout=20) as answer:  # noqa: S310 - HTTPS only
        body = json.loads(answer.read(_DOCUMENT_BYTES_MAX))
    if not isinstance(body, dict):
        raise ValueError("not a JSON object")
    return body
