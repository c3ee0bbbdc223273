"""Jobs of one function by its two buckets: inputs are stored, results are read.

Nothing here knows the scheduler, so a job without a result is LIVE. A link of such a job names its
input: by the version of that object the id is known to be a job's.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote, unquote

from contract.aws.clients import write_once
from contract.http_jobs import (
    DIGEST,
    IDEMPOTENCY_KEY,
    INLINE_BYTES_MAX,
    LIVE,
    PREFIX,
    another_fault,
    ids_folder,
    inlined,
    input_name,
    is_below,
    key_below,
    key_fault,
    name_fault,
    output_link,
    output_names,
    request_id,
    suffix_fault,
    type_of,
    undated_version,
)
from contract.keys import OUTPUT_JOB, job_id, result_key
from contract.parameters import SET, named_values, set_text
from contract.record import JsonObject
from contract.result import Result
from lambda_functions.gpu_runner.errors import StorageError
from lambda_functions.gpu_runner.storage.s3 import (
    ABSENT_PAUSES_S,
    S3,
    head_of,
    s3_errors,
    small_body,
)
from lambda_functions.http_api.requests import Refused, Request

#: Of links to objects: they are followed at once, an upload may begin later.
_LINK_S, _UPLOAD_S = 300, 900
#: Reads of a result while a request waits: the first pause, doubled up to the other.
_PAUSE_S, _PAUSE_S_MAX = 0.2, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The function that is served, as deploy wrote it into ORCHGPU_HTTP."""

    function: str
    input_bucket: str
    input_prefix: str
    input_suffixes: Sequence[str]
    results_bucket: str
    results_days: int
    outputs: Sequence[tuple[str, str]]  #: bucket and prefix

    @classmethod
    def of(cls, text: str) -> Served:
        """Keys of a newer version are ignored. Raises ValueError, KeyError."""
        given = json.loads(text)
        return cls(**{name: given[name] for name in cls.__slots__})


class _Input:
    """An input that is stored, and the jobs that its events name."""

    def __init__(self, served: Served, key: str, head: Mapping[str, Any]) -> None:
        modified: datetime = head["LastModified"]
        versions = [str(head["VersionId"])] if head.get("VersionId", "null") != "null" else []
        versions.append(undated_version(head["ETag"].strip('"'), modified.isoformat()))
        self.ids = [job_id(served.input_bucket, key, one, served.function) for one in versions]
        self.key = key
        self.stored_s = modified.timestamp()
        self.metadata: Mapping[str, str] = head.get("Metadata", {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """The jobs of one function."""

    served: Served
    s3: S3
    signer: S3  #: signs links, with headers; it expects no owner, whose header a link would need
    pause: Callable[[float], None] = time.sleep
    monotonic_s: Callable[[], float] = time.monotonic
    wall_s: Callable[[], float] = time.time

    @property
    def _folder(self) -> str:
        """Begins the keys of inputs."""
        return key_below(self.served.input_prefix, "")

    # ------------------------------------------------------------------ inputs

    def submitted(self, request: Request) -> tuple[JsonObject, int]:
        """The job of a request, stored once, with the status of the answer; or, with `upload` in
        its query, the request that stores the input. Raises Refused, StorageError."""
        served, bucket = self.served, self.served.input_bucket
        request.require_plain_body()
        id_ = self._id(request)
        given = request.one("name")
        name = input_name(id_, given, served.input_suffixes)
        fault = name_fault(given) if given else ""
        if fault := fault or suffix_fault(served.function, name, served.input_suffixes):
            raise Refused("invalid", fault)
        metadata, key = _parameters(request), self._folder + name
        self._require_free(ids_folder(served.input_prefix, id_), key)
        if "upload" in request.query:
            head = head_of(self.s3, bucket, key)
            if head is None:
                return self._offered(key, metadata), 200
        else:
            metadata[DIGEST] = hashlib.sha256(request.body).hexdigest()
            self._store(key, request.body, metadata)
            head = self._head(key)
        found = _Input(served, key, head)
        digests = {one for one in (metadata.get(DIGEST), found.metadata.get(DIGEST)) if one}
        if len(digests) > 1 or found.metadata.get(SET) != metadata.get(SET):
            raise _another(key)
        return self._after(request, found.ids[0], found)

    def _id(self, request: Request) -> str:
        key = request.headers.get(IDEMPOTENCY_KEY.lower())
        if key is None and "upload" in request.query:
            text = f"`upload` needs an {IDEMPOTENCY_KEY}: send the request again with it afterwards"
            raise Refused("invalid", text)
        if key is None:
            return secrets.token_hex(16)
        if fault := key_fault(key):
            raise Refused("invalid", fault)
        return request_id(self.served.function, key)

    def _require_free(self, beginning: str, key: str) -> None:
        """Raise Refused where an input of that id has another name."""
        bucket = self.served.input_bucket
        with s3_errors(f"list s3://{bucket}/{beginning}"):
            listed = self.s3.list_objects_v2(Bucket=bucket, Prefix=beginning, MaxKeys=1)
        for one in listed.get("Contents", ()):
            if one["Key"] != key:
                raise _another(one["Key"])

    def _store(self, key: str, body: bytes, metadata: Mapping[str, str]) -> None:
        bucket = self.served.input_bucket
        where = f"s3://{bucket}/{key}"

        def look() -> bool | None:
            """By its digest; what a caller stored has none, and may be larger than our memory."""
            if (head := head_of(self.s3, bucket, key)) is None:
                return None
            digest = head.get("Metadata", {}).get(DIGEST)
            return bool(
                digest == metadata[DIGEST] if digest else head["ContentLength"] == len(body)
            )

        try:
            with s3_errors(f"write {where}"):
                put = write_once(
                    self.s3, bucket, key, body, pause=self.pause, metadata=metadata, look=look
                )
        except StorageError as error:
            if 400 <= error.status < 500:
                raise
            text = f"{error}; the input may be stored: send the request again with the same "
            raise Refused("unavailable", text + IDEMPOTENCY_KEY, may_be_stored=where) from error
        if not put:
            raise _another(key)

    def _head(self, key: str) -> JsonObject:
        bucket = self.served.input_bucket
        for pause_s in (*ABSENT_PAUSES_S, 0.0):
            if (head := head_of(self.s3, bucket, key)) is not None:
                return head
            self.pause(pause_s)
        where = f"s3://{bucket}/{key}"
        text = f"{where} was stored, and is not shown yet: send the request again with its key"
        raise Refused("unavailable", text, may_be_stored=where)

    def _offered(self, key: str, metadata: Mapping[str, str]) -> JsonObject:
        """The request by which a caller stores a large input itself, once."""
        bucket = self.served.input_bucket
        named = {"Bucket": bucket, "Key": key, "IfNoneMatch": "*", "Metadata": dict(metadata)}
        url = self.signer.generate_presigned_url("put_object", named, ExpiresIn=_UPLOAD_S)
        headers = {"If-None-Match": "*", **{f"x-amz-meta-{n}": v for n, v in metadata.items()}}
        return {"upload": {"method": "PUT", "url": url, "headers": headers, "expires_s": _UPLOAD_S}}

    # ------------------------------------------------------------------ jobs

    def job(self, id_: str, request: Request) -> JsonObject:
        """A job; with `wait`, once it is over or the time has passed. Raises Refused."""
        found = self._input_of(id_, request.one("input"))
        return self._after(request, id_, found)[0] if request.wait_s else self._known(id_, found)

    def outputs(self, id_: str, request: Request) -> list[JsonObject]:
        """The outputs of a job; none before its end. Raises Refused."""
        found = self._input_of(id_, request.one("input"))
        outputs: list[JsonObject] = self._known(id_, found)["outputs"]
        return outputs

    def output_url(self, id_: str, name: str) -> str:
        """A link to the content of an output. Raises Refused."""
        result = self._result(id_)
        files = [] if result is None else self._files(result)
        wanted = (name, unquote(name))
        for file in files:
            if file["name"] in wanted:
                return self._signed(id_, file)
        names = ", ".join(str(file["name"]) for file in files[:10]) or "none"
        raise Refused("not_found", f"the job has no output {name!r:.200}; it has {names}")

    def _signed(self, id_: str, file: Mapping[str, Any]) -> str:
        bucket, _, key = file["url"].removeprefix("s3://").partition("/")
        head = self._own_head(id_, bucket, key)
        pin = {"VersionId": head["VersionId"]} if head.get("VersionId", "null") != "null" else {}
        # it comes from users' code: no browser is to show it as a page
        named = {"Bucket": bucket, "Key": key, "ResponseContentDisposition": "attachment", **pin}
        url: str = self.signer.generate_presigned_url("get_object", named, ExpiresIn=_LINK_S)
        return url

    def _own_head(self, id_: str, bucket: str, key: str) -> JsonObject:
        """The properties of an output, which is the job's still. Raises Refused."""
        head = head_of(self.s3, bucket, key)
        if head is None:
            raise Refused("not_found", f"s3://{bucket}/{key} was deleted")
        if head.get("Metadata", {}).get(OUTPUT_JOB) != id_:
            text = f"s3://{bucket}/{key} is not what {id_} wrote: another job or upload replaced it"
            raise Refused("conflict", text)
        return head

    def _known(self, id_: str, found: _Input | None) -> JsonObject:
        """The job, by its result or by its input. Raises Refused."""
        result = self._result(id_)
        if result is not None:
            return self._ended(result, found)
        self._require_live(id_, found)
        return self._live(found, id_)

    def _require_live(self, id_: str, found: _Input | None) -> None:
        """Raise Refused for what has no result, and is not known to have one later."""
        days, text = self.served.results_days, f"{id_!r:.40} has no result: it "
        if found is None:
            text += f"is not over, was never a job of {self.served.function}, or ended {days} days "
            text += "ago; `links.job` of the answer to its request shows whether it is live"
            raise Refused("not_found", text)
        if self.wall_s() - found.stored_s > days * 86400.0:
            text += f"began over {days} days ago, and results are kept no longer; a new "
            raise Refused("not_found", f"{text}{IDEMPOTENCY_KEY} starts another")

    def _input_of(self, id_: str, name: str | None) -> _Input | None:
        if not name or name_fault(name, 255):
            return None
        key = self._folder + name
        head = head_of(self.s3, self.served.input_bucket, key)
        found = None if head is None else _Input(self.served, key, head)
        return found if found is not None and id_ in found.ids else None

    def _after(self, request: Request, id_: str, found: _Input | None) -> tuple[JsonObject, int]:
        """The job at its end, 200; or live when the time of the request is over, 202. Raises
        Refused."""
        until_s, pause_s = min(self.monotonic_s() + request.wait_s, request.ends_s), _PAUSE_S
        while (result := self._result(id_)) is None:
            self._require_live(id_, found)
            left_s = until_s - self.monotonic_s()
            if left_s <= 0:
                return self._live(found, id_), 202
            self.pause(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        ended = self._ended(result, found)
        return {**ended, "outputs": self._with_content(ended)}, 200

    def _result(self, id_: str) -> Result | None:
        body = small_body(self.s3, self.served.results_bucket, result_key(id_))
        if body is None:
            return None
        try:
            return Result.from_json(body)
        except (ValueError, RecursionError) as error:
            raise Refused("internal", f"the result of {id_} is not readable: {error}") from None

    # ------------------------------------------------------------------ the form of an answer

    def _live(self, found: _Input | None, id_: str) -> JsonObject:
        own = {"id": id_, "function": self.served.function, "state": LIVE}
        return {**_EMPTY, **own, **self._of_input(id_, found)}

    def _of_input(self, id_: str, found: _Input | None) -> JsonObject:
        path = f"{PREFIX}jobs/{id_}"
        name = "" if found is None else f"?input={quote(found.key.removeprefix(self._folder))}"
        return {
            "input": None if found is None else f"s3://{self.served.input_bucket}/{found.key}",
            "submitted_s": None if found is None else found.stored_s,
            "links": {"job": path + name, "events": "", "outputs": f"{path}/outputs{name}"},
        }

    def _ended(self, result: Result, found: _Input | None) -> JsonObject:
        device = result.device
        return {
            **_EMPTY,
            "id": result.job_id,
            "function": self.served.function,
            "state": result.state,
            "reason": None if result.reason == "NONE" else result.reason,
            "over": True,
            "attempt": result.attempt,
            "changed_s": result.ended_at_s or max(result.times.values(), default=0.0),
            "device": f"{device.get('host')} {device.get('model')}" if device else None,
            **self._of_input(result.job_id, found),
            "exit_code": result.exit_code,
            "detail": result.detail,
            "log_tail": result.log_tail,
            "document": result.document,
            "outputs": self._files(result),
        }

    def _files(self, result: Result) -> list[JsonObject]:
        """The outputs of a job that its function declares, each under a name of its own."""
        places = self.served.outputs
        of_result = ((str(f.get("bucket", "")), str(f.get("key", "")), f) for f in result.files)
        found = [one for one in of_result if is_below(*one[:2], places)]
        names = output_names([one[:2] for one in found])
        return [
            {
                "name": name,
                "bytes": int(file.get("size") or 0),
                "content_type": type_of(key),
                "sha256": str(file.get("sha256", "")),
                "url": f"s3://{bucket}/{key}",
                "link": output_link(result.job_id, name),
                "content": None,
                "encoding": None,
            }
            for name, (bucket, key, file) in zip(names, found, strict=True)
        ]

    def _with_content(self, job: Mapping[str, Any]) -> list[JsonObject]:
        """The outputs, with the content if there is one and it is small."""
        files: list[JsonObject] = job["outputs"]
        if len(files) != 1 or files[0]["bytes"] > INLINE_BYTES_MAX:
            return files
        bucket, _, key = files[0]["url"].removeprefix("s3://").partition("/")
        try:
            head = self._own_head(job["id"], bucket, key)
            is_small = head["ContentLength"] <= INLINE_BYTES_MAX
            content = small_body(self.s3, bucket, key, IfMatch=head["ETag"]) if is_small else None
        except (Refused, StorageError):
            return files  # its link has the reason
        if content is None:
            return files
        return [{**files[0], **dict(zip(("content", "encoding"), inlined(content), strict=True))}]


#: A job of which nothing is known.
_EMPTY: Mapping[str, object] = {
    "reason": None,
    "over": False,
    "attempt": 0,
    "changed_s": None,
    "device": None,
    "waits": None,
    "progress": None,
    "exit_code": None,
    "detail": "",
    "log_tail": "",
    "document": None,
    "outputs": [],
}


def _parameters(request: Request) -> dict[str, str]:
    """The metadata of the job's parameters; empty for none. Raises Refused."""
    try:
        text = set_text(named_values(request.query.get("set", ())))
    except ValueError as error:
        raise Refused("invalid", f"set: {error}") from None
    return {SET: text} if text else {}


def _another(key: str) -> Refused:
    return Refused("conflict", another_fault(key), key=key)
