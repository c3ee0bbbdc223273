"""Dead letters of the functions that a viewer sees, and their return to the queue."""

from __future__ import annotations

import asyncio

from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import Value
from orchgpu.core.function import Function
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.direct import DirectFunction
from orchgpu.jobs.letters import LETTERS_MAX, Letter, dead_letters
from orchgpu.jobs.rights import Role
from orchgpu.web.http.sessions import Session
from orchgpu.web.model.viewers import Viewer
from orchgpu.web.work.door import CloudDoor
from orchgpu.web.work.functions import plain_functions

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


async def letters_json(
    door: CloudDoor, session: Session, function: str | None
) -> dict[str, object]:
    """The letters of one function, or of all; the numbers of all. Raises NOT_FOUND."""
    viewer, party = session.viewer, session.party
    wanted, counts = await door.ask(party, lambda cloud: _filled(cloud, viewer, function))
    turns = asyncio.Semaphore(QUEUES_AT_ONCE)

    async def entries(of: AnyFunction) -> list[LetterEntry]:
        async with turns:
            return await door.ask(party, lambda cloud: _entries(cloud, of, viewer))

    found = await asyncio.gather(*map(entries, wanted))
    items = [one for part in found for one in part]
    items.sort(key=lambda one: one.sent_s or 0.0, reverse=True)
    return {"items": items, "counts": counts, "read_max": READ_MAX}


def _filled(
    cloud: JobCloud, viewer: Viewer, function: str | None
) -> tuple[list[AnyFunction], list[LetterCount]]:
    """The functions whose letters are read, and the numbers of all."""
    seen = _seen(cloud, viewer)
    counts = [LetterCount(function=f.name, letters=cloud.letters(f)) for f in seen]
    filled = {one.function for one in counts if one.letters}
    wanted = [f for f in seen if f.name == function or (function is None and f.name in filled)]
    if function is not None and not wanted:
        raise AppError(ErrorCode.NOT_FOUND, f"no function {function!r:.80} is deployed here")
    return wanted, counts


def _seen(cloud: JobCloud, viewer: Viewer) -> list[AnyFunction]:
    """The functions with a queue of dead letters that the viewer sees."""
    seen: list[AnyFunction] = [one for one in cloud.functions() if viewer.sees_function(one)]
    return seen + [one for one in plain_functions(cloud, viewer) if one.dead_letters]


def _entries(cloud: JobCloud, function: AnyFunction, viewer: Viewer) -> list[LetterEntry]:
    with dead_letters(cloud.services, function) as letters:
        return [_entry(one, function, viewer) for one in letters.read(READ_MAX)]


def _entry(letter: Letter, function: AnyFunction, viewer: Viewer) -> LetterEntry:
    return LetterEntry(
        letter=letter.id,
        function=function.name,
        job=letter.job,
        reason=letter.reason,
        detail=letter.detail,
        sent_s=letter.dead_at_s,
        input=letter.input,
        may_retry=letter.input is not None and viewer.role is not Role.READER,
    )


def send_back(cloud: JobCloud, viewer: Viewer, letter: str, function: str | None) -> None:
    """Send one letter back to the queue of its function. Raises NOT_FOUND, INVALID.

    `function`: the one that has the letter; None: each that the viewer sees is searched.
    """
    viewer.require(Role.REQUESTER, "another run of a job")
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
