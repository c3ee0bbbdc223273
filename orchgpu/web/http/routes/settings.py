"""Rules and limits of the scheduler; drain and undrain. With the viewer's own key."""

from __future__ import annotations

from aiohttp import web

from corekit.errors import invalid
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.parameters import given_of
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import ParametersAnswer
from orchgpu.jobs.rights import Role
from orchgpu.web.console import CONSOLE
from orchgpu.web.http.access import session_of
from orchgpu.web.http.answers import answered, body_of
from orchgpu.web.work.settings import settings_json

ROUTES = web.RouteTableDef()


@ROUTES.get("/api/settings")
async def read(request: web.Request) -> web.Response:
    """Parameters, quotas and policies."""
    session, console = await session_of(request), request.app[CONSOLE]

    async def question(client: SchedulerClient) -> ParametersAnswer:
        return await client.ask(ops.ParametersOf())

    found = await console.scheduler.ask(session.key, question)
    shown = settings_json(found, may_change=session.viewer.role is Role.OPERATOR)
    return answered({**shown, "drained": console.picture.fleet.drained()})


@ROUTES.post("/api/settings")
async def change(request: web.Request) -> web.Response:
    """Change one parameter, durably and at once."""
    session, console = await session_of(request), request.app[CONSOLE]
    given = await body_of(request, {"name": str, "value": object})
    session.viewer.require(Role.OPERATOR, "a change of a parameter")
    value = given["value"]
    if value is not None and not isinstance(value, (str, int, float, bool)):
        raise invalid("value must be a word, a number, true, false or null")

    async def question(client: SchedulerClient) -> ParametersAnswer:
        name = str(given["name"])
        read = given_of(name, value) if isinstance(value, str) else value
        return await client.set_parameter(name, read)

    found = await console.scheduler.ask(session.key, question)
    console.picture.parameter_changed(str(given["name"]), value)
    return answered(settings_json(found, may_change=True))


@ROUTES.post("/api/drain")
async def drain(request: web.Request) -> web.Response:
    """Grant no new leases on a host or a device; with `revoke`, end live ones."""
    return await _drained(request, drained=True)


@ROUTES.post("/api/undrain")
async def undrain(request: web.Request) -> web.Response:
    """Grant new leases there again."""
    return await _drained(request, drained=False)


async def _drained(request: web.Request, *, drained: bool) -> web.Response:
    session, console = await session_of(request), request.app[CONSOLE]
    given = await body_of(request, {"target": str}, {"revoke": bool} if drained else {})
    session.viewer.require(Role.OPERATOR, "a drain")
    host, device = console.picture.fleet.target_of(str(given["target"]))

    async def question(client: SchedulerClient) -> None:
        if drained:
            await client.drain(host, device, revoke=given.get("revoke") is True)
        else:
            await client.undrain(host, device)

    await console.scheduler.ask(session.key, question)
    console.feed.wake()
    return answered({"host": host, "device": device, "drained": drained})
