"""The outputs of a job: a list, and each content or a range of it, in pieces from the store."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from urllib.parse import quote

from aiohttp import web

from corekit.errors import AppError, ErrorCode, invalid
from orchgpu.cloud_services import Head
from orchgpu.jobs.outputs import JobOutput, own_head
from orchgpu.web.api.callers import visit_of
from orchgpu.web.api.jobs import known_of
from orchgpu.web.api.model import JobFile, JobFiles, files_of
from orchgpu.web.http.answers import answered, api_refused
from orchgpu.web.http.security import SANDBOX_POLICY, Visit

logger = logging.getLogger(__name__)
ROUTES = web.RouteTableDef()

#: One read of the store.
PIECE_BYTES = 4 * 2**20


@ROUTES.get("/v1/jobs/{job}/outputs")
async def outputs(request: web.Request) -> web.Response:
    """The outputs of a job; none while it is not over."""
    visit = await visit_of(request)
    known = await known_of(visit, request.match_info["job"])
    return answered(JobFiles(outputs=tuple(file for file, _ in files_of(known))))


@ROUTES.get("/v1/jobs/{job}/outputs/{name:.+}")
async def output(request: web.Request) -> web.StreamResponse:
    """The content of one output, or the range that is asked for."""
    visit, name = await visit_of(request), request.match_info["name"]
    found = files_of(await known_of(visit, request.match_info["job"]))
    named = next((one for one in found if one[0].name == name), None)
    if named is None:
        names = ", ".join(file.name for file, _ in found[:10]) or "none"
        text = f"the job has no output {name!r:.200}; it has {names}"
        raise AppError(ErrorCode.NOT_FOUND, text)
    file, place = named
    head = await visit.ask_cloud(lambda cloud: own_head(cloud, place))
    return await _sent(request, visit, file, place, head)


async def _sent(
    request: web.Request, visit: Visit, file: JobFile, place: JobOutput, head: Head
) -> web.StreamResponse:
    part = _range_of(request, head)
    headers = _headers(file, head)
    if part is not None and not part:
        error = invalid(f"{file.name} has {head.size} bytes; the range begins behind them")
        answer = api_refused(error, 416)
        answer.headers["Content-Range"] = f"bytes */{head.size}"
        return answer
    whole = range(head.size) if part is None else part
    if part is not None:
        headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{head.size}"
    response = web.StreamResponse(status=200 if part is None else 206, headers=headers)
    response.content_length = len(whole)
    is_sent = request.method != "HEAD" and len(whole) > 0
    first = await _read(visit, place, head, whole) if is_sent else None
    await response.prepare(request)
    try:
        if first is not None:
            await response.write(first)
            for start in range(whole.start + PIECE_BYTES, whole.stop, PIECE_BYTES):
                await response.write(await _read(visit, place, head, range(start, whole.stop)))
    except AppError as error:
        logger.warning("%s broke off: %s", request.path, error.message)
        if request.transport is not None:
            request.transport.abort()  # less than Content-Length has come: the caller notices
    return response


async def _read(visit: Visit, place: JobOutput, head: Head, rest: range) -> bytes:
    """The next piece. Raises CONFLICT when the object was replaced since its first one."""
    part = rest[:PIECE_BYTES]
    return await visit.ask_cloud(
        lambda cloud: cloud.fetch(place.bucket, place.key, etag=head.etag, part=part)
    )


def _headers(file: JobFile, head: Head) -> dict[str, str]:
    """Users' code wrote the content: a browser stores it, and runs nothing in it."""
    name = quote(file.name.rpartition("/")[2], safe="")
    return {
        "Content-Type": file.content_type,
        "Content-Disposition": f"attachment; filename*=UTF-8''{name}",
        "Content-Security-Policy": SANDBOX_POLICY,
        "Accept-Ranges": "bytes",
        "ETag": f'"{head.etag}"',
        "Cache-Control": "no-store",
    }


def _range_of(request: web.Request, head: Head) -> range | None:
    """The one range of a request; empty: there is none such; None: all of it (RFC 9110 §14.2)."""
    condition: Mapping[str, str] = request.headers
    if condition.get("If-Range", f'"{head.etag}"') != f'"{head.etag}"':
        return None
    try:
        asked = request.http_range
    except ValueError:  # several ranges, or none that is one
        return None
    if asked.start is None and asked.stop is None:
        return None
    start, stop, _ = asked.indices(head.size)
    return range(start, max(start, stop))
