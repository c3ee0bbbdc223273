"""One event of a Function URL (payload format 2.0) as a request, and the answers to it."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs

from contract.http_jobs import WAIT_S_MAX
from contract.record import JsonObject

#: Code of an error → its status, as in every HTTP API of ours.
_STATUS = {
    "invalid": 400,
    "denied": 403,
    "not_found": 404,
    "conflict": 409,
    "impossible": 422,
    "internal": 500,
    "unavailable": 503,
}
#: Of Lambda, for a whole answer.
_ANSWER_BYTES_MAX = 6 * 10**6


class Refused(Exception):
    """A request that is not done: the code and the sentence of its answer."""

    def __init__(self, code: str, message: str, *, status: int = 0, **details: object) -> None:
        super().__init__(message)
        self.status = status or _STATUS[code]
        self.body = {"error": {"code": code, "message": message, "details": details}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, whose caller IAM has let through."""

    method: str
    path: str
    headers: Mapping[str, str]  #: names in lower case
    query: Mapping[str, list[str]]
    body: bytes
    wait_s: float  #: for the end of a job
    ends_s: float  #: no answer waits longer, by the clock of this process

    @classmethod
    def of(cls, event: JsonObject, ends_s: float) -> Request:
        """Raises Refused, and ValueError for an event that no Function URL sent."""
        context = event.get("requestContext")
        if event.get("version") != "2.0" or not isinstance(context, dict) or "http" not in context:
            raise ValueError("this function answers requests to its Function URL only")
        if not (context.get("authorizer") or {}).get("iam"):
            text = "the request is not signed: the URL must have the auth type AWS_IAM"
            raise Refused("denied", text, status=401)
        query = parse_qs(str(event.get("rawQueryString") or ""), keep_blank_values=True)
        return cls(
            method=str(context["http"]["method"]),
            path=str(event.get("rawPath") or "/"),
            headers={name.lower(): str(v) for name, v in (event.get("headers") or {}).items()},
            query=query,
            body=_body(event),
            wait_s=_seconds(query.get("wait", ["0"])[-1]),
            ends_s=ends_s,
        )

    def one(self, name: str) -> str | None:
        """A parameter of the query; the last one of several."""
        return self.query[name][-1] if name in self.query else None

    def require_plain_body(self) -> None:
        """Raise Refused for a body that is not the input itself."""
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            text = "Content-Encoding is not accepted; send the content as the function reads it"
            raise Refused("invalid", text)
        is_event = "ce-id" in self.headers or "ce-specversion" in self.headers
        if is_event or kind in ("application/json", "multipart/form-data") or "cloudev" in kind:
            text = "this URL takes the input as the body alone: no form, CloudEvent or reference"
            raise Refused("invalid", f"{text}; send it as application/octet-stream")


def _seconds(text: str) -> float:
    try:
        wait_s = float(text)
    except ValueError:
        raise Refused("invalid", f"wait {text!r:.40} is not a number") from None
    if not 0.0 <= wait_s <= WAIT_S_MAX:
        text = f"wait {wait_s:g} must lie in 0…{WAIT_S_MAX:g} seconds; ask again after that"
        raise Refused("invalid", text)
    return wait_s


def _body(event: JsonObject) -> bytes:
    text = str(event.get("body") or "")
    if not event.get("isBase64Encoded"):
        return text.encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("the body of the event is not base64") from None


def answered(value: object, status: int = 200, **headers: str) -> JsonObject:
    """An answer in JSON, as Lambda takes it."""
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if len(body.encode()) > _ANSWER_BYTES_MAX:
        text = "the answer is larger than Lambda sends: read the job's result, results/ID.json"
        return answered(Refused("impossible", text).body, 422)
    shown = {"content-type": "application/json", "cache-control": "no-store", **headers}
    return {"statusCode": status, "headers": shown, "body": body, "isBase64Encoded": False}
