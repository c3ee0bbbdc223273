"""Dead letters of the functions that a viewer sees, and their return to the queue."""

from __future__ import annotations

import asyncio

from aiohttp import web

from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import Value
from gpu_scheduler.protocol.keys import KeyRole
from orchgpu.core.function import Function
from orchgpu.jobs.cloud import DirectFunction, JobCloud
from orchgpu.jobs.letters import LETTERS_MAX, Letter, dead_letters
from orchgpu.jobs.rights import KeyRights
from orchgpu.web.http.answers import answered, body_of, text_of
from orchgpu.web.http.security import visit_of
from orchgpu.web.routes.functions import plain_functions

ROUTES = web.RouteTableDef()
#: Letters of one function that one request reads.
READ_MAX = 100
#: Functions whose letters one request reads at once: each read ends with a long poll.
QUEUES_AT_ONCE = 2

#: A function with dead letters: of jobs, or (without jobs) of events that Lambda could not run.
AnyFunction = Function | DirectFunction


class LetterEntry(Value):
    """One dead letter as the page gets it."""

    letter: str  #: its id
    function: str
    job: str | None
    reason: str | None
    detail: str
    sent_s: float | None  #: wall clock
    input: str | None
    may_retry: bool


class LetterCount(Value):
    """The number of letters of one function."""

    function: str
    letters: int


@ROUTES.get("/api/letters")
async def letters(request: web.Request) -> web.Response:
    """The letters of one function, or of all, and the numbers of all; they stay in their queues."""
    visit, function = await visit_of(request), text_of(request, "function")
    viewer = visit.viewer
    wanted, counts = await visit.ask_cloud(lambda cloud: _filled(cloud, viewer, function))
    turns = asyncio.Semaphore(QUEUES_AT_ONCE)

    async def entries(of: AnyFunction) -> list[LetterEntry]:
        async with turns:
            return await visit.ask_cloud(lambda cloud: _entries(cloud, of, viewer))

    found = await asyncio.gather(*map(entries, wanted))
    items = [one for part in found for one in part]
    items.sort(key=lambda one: one.sent_s or 0.0, reverse=True)
    return answered({"items": items, "counts": counts, "read_max": READ_MAX})


@ROUTES.post("/api/letters/{letter}/retry")
async def retry_letter(request: web.Request) -> web.Response:
    """Send one dead letter back to the queue of its function.

    Without the `function` that has it, each that the viewer sees is searched.
    """
    visit, letter = await visit_of(request), request.match_info["letter"]
    function = (await body_of(request, {}, {"function": str})).get("function")
    name = function if isinstance(function, str) else None
    await visit.ask_cloud(lambda cloud: _send_back(cloud, visit.viewer, letter, name))
    return answered({"letter": letter, "retried": True})


def _filled(
    cloud: JobCloud, viewer: KeyRights, function: str | None
) -> tuple[list[AnyFunction], list[LetterCount]]:
    """The functions whose letters are read, and the numbers of all."""
    seen = _seen(cloud, viewer)
    counts = [LetterCount(function=f.name, letters=cloud.letters(f)) for f in seen]
    filled = {one.function for one in counts if one.letters}
    wanted = [f for f in seen if f.name == function or (function is None and f.name in filled)]
    if function is not None and not wanted:
        raise AppError(ErrorCode.NOT_FOUND, f"no function {function!r:.80} is deployed here")
    return wanted, counts


def _seen(cloud: JobCloud, viewer: KeyRights) -> list[AnyFunction]:
    """The functions with a queue of dead letters that the viewer sees."""
    seen: list[AnyFunction] = [one for one in cloud.functions() if viewer.sees_function(one)]
    return seen + [one for one in plain_functions(cloud, viewer) if one.dead_letters]


def _entries(cloud: JobCloud, function: AnyFunction, viewer: KeyRights) -> list[LetterEntry]:
    with dead_letters(cloud.services, function) as letters:
        return [_entry(one, function, viewer) for one in letters.read(READ_MAX)]


def _entry(letter: Letter, function: AnyFunction, viewer: KeyRights) -> LetterEntry:
    return LetterEntry(
        letter=letter.id,
        function=function.name,
        job=letter.job,
        reason=letter.reason,
        detail=letter.detail,
        sent_s=letter.dead_at_s,
        input=letter.input,
        may_retry=letter.input is not None and viewer.role is not KeyRole.READER,
    )


def _send_back(cloud: JobCloud, viewer: KeyRights, letter: str, function: str | None) -> None:
    """Raises NOT_FOUND, and INVALID for a letter that is not the event of an input."""
    viewer.require(KeyRole.REQUESTER, "another run of a job")
    if function is not None and cloud.direct(function) is None:
        viewer.require_function(cloud.function(function))
    for one in _seen(cloud, viewer):
        if function in (None, one.name) and _sent_back(cloud, one, letter):
            return
    text = f"there is no dead letter {letter!r:.80}; another reader may hide it for a moment"
    raise AppError(ErrorCode.NOT_FOUND, text)


def _sent_back(cloud: JobCloud, function: AnyFunction, letter: str) -> bool:
    with dead_letters(cloud.services, function) as letters:
        one = next((one for one in letters.read(LETTERS_MAX) if one.id == letter), None)
        if one is None:
            return False
        if one.input is None:
            raise invalid(f"letter {letter!r:.80} is not the event of an input; it stays")
        letters.send_back(one)
        return True
