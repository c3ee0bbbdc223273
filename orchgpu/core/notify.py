"""Notices of the ends of jobs and runs: their targets, documents and signatures. Pure.

The orchestrator that ends a job or run sends a notice for each target to a queue that it reads
itself (the completion queue of the function, the queue of the workflow), before the message of the
job is deleted or the result of the run is stored: so no end is lost. Any replica receives the
notice, reads the result and delivers it; a target that does not answer lets the notice come again.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from corekit.values import Value, field, replace

#: SNS takes as much, and SQS by default: the document of a job with many files is cut to it.
DOCUMENT_BYTES_MAX = 256 * 1024 - 1024
_KEY_PREFIX = "whsec_"


class Target(Value):
    """One element of `notify` in a record: exactly one of the first three is not empty."""

    queue: str = ""  #: name of a queue of the same account and region as the function's own
    topic: str = ""  #: ARN
    webhook: str = ""  #: URL
    secret: str = ""  #: reference to the key that signs a webhook; "" = not signed
    format: str = ""  #: `cloudevents`; "" = the document of `document_of`

    @property
    def name(self) -> str:
        """Distinguishes the targets of a function or workflow, also in the log."""
        return self.webhook or self.topic or f"queue {self.queue}"

    @property
    def takes_events(self) -> bool:
        """True for a target that gets CloudEvents."""
        return self.format == "cloudevents"


class Notice(Value):
    """A job, or a run, has ended: one target is notified of it."""

    target: str  #: its name
    job: str = ""
    run: str = ""  #: of the job, if it is a step's; or that has ended itself
    workflow: str = ""
    step: str = ""
    retries: int = 0  #: of a run: its result knows of as many
    bucket: str = ""  #: of the input of the job
    key: str = ""
    version: str = ""
    #: Of a run: the end that queued it, without files; a retry may replace the stored one.
    end: Mapping[str, object] = field(default_factory=dict)

    @property
    def of(self) -> str:
        """The job or the run that has ended."""
        return self.job or self.run


def notice_bodies(targets: Sequence[Target], notice: Notice) -> tuple[str, ...]:
    """The messages about one end."""
    return tuple(_body(replace(notice, target=target.name)) for target in targets)


def _body(notice: Notice) -> str:
    fields = {name: getattr(notice, name) for name in Notice.__struct_fields__}
    return json.dumps({"orchgpu": {"notify": {k: v for k, v in fields.items() if v}}})


def notice_of(body: str) -> Notice | None:
    """The notice in a message; None for any other one. Raises nothing."""
    if '"notify"' not in body:
        return None
    try:
        value = json.loads(body)["orchgpu"]["notify"]
        fields = {name: value[name] for name in Notice.__struct_fields__ if name in value}
        retries, end = fields.pop("retries", 0), fields.pop("end", {})
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    texts = all(isinstance(one, str) for one in fields.values()) and type(retries) is int
    if (
        not texts
        or not isinstance(end, dict)
        or not fields.get("target")
        or not (fields.get("job") or fields.get("run"))
    ):
        return None
    return Notice(**fields, retries=retries, end=end)


# ---------------------------------------------------------------------- the document


def notice_id(notice: Notice, ended_at_s: float) -> str:
    """Equal for every delivery about the same end: who gets two counts one.

    A run ends once after each retry, whichever replica's time of it is stored.
    """
    end = repr(ended_at_s) if notice.job else str(notice.retries)
    digest = hashlib.sha256(f"{notice.of}\0{end}".encode()).hexdigest()
    return f"msg_{digest[:27]}"


def document_of(notice: Notice, name: str, result: Mapping[str, object]) -> dict[str, object]:
    """The document that a target gets.

    `result`: of the job or run; `name`: of its function or workflow.

    Files are left out from the end, and counted, where the document would be too large.
    """
    ended_at_s = result.get("ended_at_s")
    at_s = float(ended_at_s) if isinstance(ended_at_s, int | float) else 0.0
    about: dict[str, object] = {"function": name, "job": notice.job, **_step_of(notice)}
    if not notice.job:
        about = {"workflow": name, "run": notice.run}
    whole: dict[str, object] = {
        "type": "job.ended" if notice.job else "run.ended",
        "id": notice_id(notice, at_s),
        "timestamp": datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds"),
        "data": {**about, "state": result.get("state", ""), "result": dict(result)},
    }
    return whole if len(text_of(whole)) <= DOCUMENT_BYTES_MAX else _shortened(whole)


def cloud_event(document: Mapping[str, object]) -> dict[str, object]:
    """The same document as an event of CloudEvents 1.0, in the structured form of JSON.

    Its type ends with the state, as `orchgpu.job.succeeded`; a document without one is `ended`.
    """
    data = document["data"]
    assert isinstance(data, dict), "made above"
    kind = "job" if "job" in data else "run"
    of = "function" if kind == "job" else "workflow"
    return {
        "specversion": "1.0",
        "id": document["id"],
        "source": f"urn:orchgpu:{of}:{data[of]}",
        "type": f"orchgpu.{kind}.{str(data['state']).lower() or 'ended'}",
        "subject": data[kind],
        "time": document["timestamp"],
        "datacontenttype": "application/json",
        "data": data,
    }


def _step_of(notice: Notice) -> dict[str, object]:
    source = {"bucket": notice.bucket, "key": notice.key, "version": notice.version or None}
    found: dict[str, object] = {"input": source}
    if notice.run:
        found |= {"workflow": notice.workflow, "run": notice.run, "step": notice.step}
    return found


def _shortened(whole: dict[str, object]) -> dict[str, object]:
    data = whole["data"]
    assert isinstance(data, dict), "made above"
    result = dict(data["result"])
    files = result.get("files")
    every = list(files) if isinstance(files, list | tuple) else []
    before = result.get("files_left_out")
    left_out = before if isinstance(before, int) else 0
    for cut in _cut(result, every, left_out):
        short: dict[str, object] = {**whole, "data": {**data, "result": cut}}
        if len(text_of(short)) <= DOCUMENT_BYTES_MAX:
            return short
    state = {"state": result.get("state"), "reason": result.get("reason")}
    return {**whole, "data": {**data, "result": state}}


def _cut(
    result: dict[str, object], files: list[object], left_out: int
) -> Iterator[dict[str, object]]:
    count = len(files)
    while count:
        count //= 2
        more = left_out + len(files) - count
        yield {**result, "files": files[:count], "files_left_out": more}


def text_of(document: Mapping[str, object]) -> str:
    """The text that is sent, in ASCII: as many bytes as characters."""
    return json.dumps(document, separators=(",", ":"))


# ---------------------------------------------------------------------- webhooks


def webhook_headers(
    body: str, id_: str, at_s: float, key: bytes | None, *, event: bool = False
) -> dict[str, str]:
    """The headers of a request, as in the Standard Webhooks specification 1.0.

    `at_s`: wall clock of the try. `key` None: not signed. `event`: the body is a CloudEvent.
    """
    headers = {
        "content-type": f"application/{'cloudevents+' if event else ''}json",
        "webhook-id": id_,
        "webhook-timestamp": str(int(at_s)),
    }
    if key is not None:
        signed = f"{id_}.{int(at_s)}.{body}".encode()
        digest = hmac.new(_key(key), signed, hashlib.sha256).digest()
        headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
    return headers


def _key(secret: bytes) -> bytes:
    """`whsec_` and base64, as the specification writes keys; any other text is the key itself."""
    text = secret.strip()
    if text.startswith(_KEY_PREFIX.encode()):
        try:
            return base64.b64decode(text.removeprefix(_KEY_PREFIX.encode()), validate=True)
        except binascii.Error:
            return text
    return text


def pause_s(age_s: float, *, least_s: float, most_s: float) -> float:
    """The time to the next try: half of the time that there were tries already."""
    return min(max(age_s / 2, least_s), most_s)
