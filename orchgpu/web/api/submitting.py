"""`POST /v1/functions/NAME/jobs`: one request becomes one input, and so one job.

The input's name begins with an id: of the function and the idempotency key (of a CloudEvent: its
source and id), or a random one. It is stored on the condition that nothing is there, so a request
that is repeated, on whichever server, finds the input of the first one. The name that the caller
gives follows the id; another name or other parameters under the same key are another body.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path, PurePosixPath

from aiohttp import BodyPartReader, web

from contract.http_jobs import (
    IDEMPOTENCY_KEY,
    NAME_BYTES_MAX,
    another_fault,
    ids_folder,
    input_name,
    is_below,
    key_fault,
    request_id,
)
from corekit.decode import decode
from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import Value
from gpu_scheduler.protocol.keys import KeyRole
from orchgpu.core.function import Function
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.parameters import parameters_text
from orchgpu.jobs.places import At, parse_url
from orchgpu.jobs.uploaded import Submitted, input_key
from orchgpu.web.api.callers import visit_of
from orchgpu.web.api.cloud_events import (
    EVENT_BYTES_MAX,
    Event,
    binary_event,
    is_structured,
    structured_event,
)
from orchgpu.web.api.jobs import finished, seconds_of
from orchgpu.web.api.model import InputReference, queued
from orchgpu.web.http.answers import answered, body_of, small_body
from orchgpu.web.http.security import Visit
from orchgpu.web.http.uploads import (
    PIECE_BYTES,
    Upload,
    body_pieces,
    check_name,
    check_size,
    timely,
)
from orchgpu.web.routes.functions import workflow_of

ROUTES = web.RouteTableDef()


@ROUTES.post("/v1/functions/{function}/jobs")
async def submit(request: web.Request) -> web.Response:
    """Store an input, which starts a job; with `wait`, answer with its end if that is in time."""
    visit, wait_s = await visit_of(request), seconds_of(request)
    check_size(request.content_length)
    if not wait_s:
        return await _submit(request, visit, 0.0)
    with visit.console.api.waiting.one(visit.session.party):
        return await _submit(request, visit, wait_s)


async def _submit(request: web.Request, visit: Visit, wait_s: float) -> web.Response:
    name = request.match_info["function"]
    _require_plain_key(request)
    api = visit.console.api
    function = await visit.ask_cloud(lambda cloud: submittable(cloud, visit, name))
    with api.inputs.one(visit.session.party):
        submitted = await _stored(request, visit, function, await _given(request, name))
    api.note(submitted)
    job = queued(submitted)
    over = await finished(request, visit, job.id, wait_s) if wait_s else None
    headers = {"Location": job.links.job}
    return answered(over or job, 202 if over is None else 200, headers)


def require_upload(visit: Visit, function: Function) -> None:
    """Raise DENIED, or NOT_FOUND, unless the caller may upload to the function."""
    visit.viewer.require(KeyRole.REQUESTER, "a job")
    visit.viewer.require_function(function)
    visit.viewer.require_its_jobs(function)


def submittable(cloud: JobCloud, visit: Visit, name: str) -> Function:
    """The function, to which the caller may upload. Raises DENIED, NOT_FOUND, INVALID."""
    visit.viewer.require(KeyRole.REQUESTER, "a job")
    function = cloud.function(name)
    require_upload(visit, function)
    workflow = workflow_of(cloud, name)
    if workflow is not None:
        text = f"{name} is a step of workflow {workflow.name}, whose inputs start runs: "
        raise invalid(f"{text}`orchgpu run {workflow.name} FILE` starts one")
    return function


class _Given(Value):
    """The parts of a request that are known before its body is an input."""

    id: str  #: the beginning of the input's name: the same for requests with the same key
    parameters: str  #: as `contract.parameters.set_text` writes them
    is_event: bool
    content: bytes | None  #: of the input; None: the body, or an object
    at: At | None  #: the object that becomes the input

    @property
    def source(self) -> str:
        return "" if self.at is None else self.at.url


def _require_plain_key(request: web.Request) -> None:
    key = request.headers.get(IDEMPOTENCY_KEY, "-")
    if fault := key_fault(key):
        raise invalid(fault)


async def _given(request: web.Request, function: str) -> _Given:
    parameters = parameters_text(request.query.getall("set", ()), "set")
    key, event = request.headers.get(IDEMPOTENCY_KEY), await _event(request)
    content, at = None, None
    if event is not None:
        if key is not None:
            raise invalid(f"a CloudEvent's source and id are its key: leave {IDEMPOTENCY_KEY} out")
        key, content = event.key, event.data
        at = _object(event.dataref, "dataref") if event.dataref and content == b"" else None
    elif request.content_type == "application/json":
        at = await _reference(request)
    id_ = secrets.token_hex(16)
    if key is not None:
        id_ = request_id(function, key)
    return _Given(id=id_, parameters=parameters, is_event=event is not None, content=content, at=at)


async def _stored(
    request: web.Request, visit: Visit, function: Function, given: _Given
) -> Submitted:
    """The input of a request, stored once."""
    received = await _received(request, function, given)
    # kept while a request of that id has its content: no sender can hold others up
    lock = visit.console.api.repeats.setdefault(given.id, asyncio.Lock())
    file = received.file
    try:
        if given.at is not None:
            earlier = await visit.ask_cloud(lambda one: _earlier(one, function, file, given))
            if earlier is not None:
                return earlier  # whatever became of the source
            await _copied(visit, given.at, file)
        async with lock:
            return await visit.ask_cloud(lambda cloud: _store(cloud, function, file, given))
    finally:
        received.remove()


def _earlier(cloud: JobCloud, function: Function, file: Path, given: _Given) -> Submitted | None:
    """The job of that id, if its input was copied from there. Raises CONFLICT for another name."""
    if _is_there(cloud, function, file, given.id):
        return cloud.submitted_from(function, file, given.source, given.parameters)
    return None


def _is_there(cloud: JobCloud, function: Function, file: Path, id_: str) -> bool:
    """Whether an input of that id exists. Raises CONFLICT for one with another name."""
    key = input_key(function, file)
    beginning = ids_folder(function.input_prefix, id_)
    earlier = next(iter(cloud.objects(function.input_bucket, beginning)), None)
    if earlier is not None and earlier.key != key:
        raise _another(earlier.key)
    return earlier is not None


def _store(cloud: JobCloud, function: Function, file: Path, given: _Given) -> Submitted:
    """Store the input unless it is there. Raises CONFLICT, and what the store refuses."""
    _is_there(cloud, function, file, given.id)
    cloud.check(function, file)
    key = input_key(function, file)
    try:
        source, parameters = given.source, given.parameters
        return cloud.submit_once(function, file, source=source, parameters=parameters)
    except AppError as error:
        if error.code is ErrorCode.CONFLICT:
            raise _another(key) from error
        if not error.retryable:
            raise
        where = f"s3://{function.input_bucket}/{key}"
        text = f"{error.message}; the input may be stored as {where}: send the request again with "
        text += f"the same {IDEMPOTENCY_KEY}"
        raise AppError(error.code, text, may_be_stored=where) from error


def _another(key: str) -> AppError:
    return AppError(ErrorCode.CONFLICT, another_fault(key), key=key)


# ---------------------------------------------------------------------- bodies


async def _event(request: web.Request) -> Event | None:
    """The CloudEvent that the request is; None for another request. Raises INVALID."""
    if is_structured(request.content_type):
        return structured_event(await small_body(request, EVENT_BYTES_MAX))
    return binary_event(request.headers, has_body=request.body_exists)


async def _received(request: web.Request, function: Function, given: _Given) -> Upload:
    """The input in a file: the body, the one file of a form; empty yet for an object."""
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise invalid("Content-Encoding is not accepted; send the content as the function reads it")
    named = request.query.get("name")
    if given.at is not None:
        return _upload(function, given.id, named or PurePosixPath(given.at.prefix).name)
    if not given.is_event and request.content_type == "multipart/form-data":
        return await _of_form(request, function, given.id, named)
    upload = _upload(function, given.id, named)
    try:
        if given.content is None:
            await upload.receive(body_pieces(request))
        else:
            upload.file.write_bytes(given.content)
    except BaseException:
        upload.remove()
        raise
    return upload


def _upload(function: Function, id_: str, name: str | None) -> Upload:
    """An empty upload; without a name it has one that the function takes."""
    if name:
        check_name(name, NAME_BYTES_MAX)
    return Upload(input_name(id_, name, function.input_suffixes))


async def _of_form(request: web.Request, function: Function, id_: str, named: str | None) -> Upload:
    found: Upload | None = None
    try:
        async for part in timely(await request.multipart()):
            if found is not None or not isinstance(part, BodyPartReader) or not part.filename:
                raise invalid("a form must have one part, with a file: curl -F file=@NAME")
            found = _upload(function, id_, named or part.filename)
            await found.receive(_pieces(part))
    except BaseException as error:
        if found is not None:
            found.remove()
        if isinstance(error, ValueError):  # of aiohttp, for a body that is not a form
            raise invalid(f"the form cannot be read: {error}") from None
        raise
    if found is None:
        raise invalid("the form has no file: curl -F file=@NAME")
    return found


async def _pieces(part: BodyPartReader) -> AsyncIterator[bytes]:
    while piece := await part.read_chunk(PIECE_BYTES):
        yield piece


async def _reference(request: web.Request) -> At:
    """The object that a JSON body names. Raises INVALID."""
    given = decode(InputReference, await body_of(request, {"input": str}), "body")
    return _object(given.input, "input")


def _object(url: str, name: str) -> At:
    at = parse_url(url)
    if not {"", ".", ".."}.isdisjoint(at.prefix.split("/")):  # of a folder, or read as another key
        raise invalid(f"{name} {url!r:.200} names no object; write s3://bucket/key")
    return at


async def _copied(visit: Visit, at: At, to: Path) -> None:
    """The object in a file, if the caller may read it. Raises DENIED, NOT_FOUND, IMPOSSIBLE."""

    def copy(cloud: JobCloud) -> None:
        seen = (one for one in cloud.functions() if visit.viewer.sees_function(one))
        if not visit.viewer.sees_all and not any(_has(one, at) for one in seen):
            text = f"{at.url} is not below an input or output of a function that the key may read"
            raise visit.viewer.denied(text)
        check_size(cloud.head(at.bucket, at.prefix).size)
        cloud.download(at.bucket, at.prefix, to)

    await visit.ask_cloud(copy)


def _has(function: Function, at: At) -> bool:
    """Whether an object lies where the function reads its inputs or writes its outputs."""
    places = [(function.input_bucket, function.input_prefix)]
    places += [(one.bucket, one.prefix) for one in function.outputs]
    return is_below(at.bucket, at.prefix, places)
