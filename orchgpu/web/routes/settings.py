"""Rules and limits of the scheduler as a form; drain and undrain. With the viewer's own key."""

from __future__ import annotations

from collections.abc import Iterator

from aiohttp import web

from corekit.decode import encode
from corekit.errors import invalid
from corekit.ids import DeviceId, HostId
from corekit.values import Value
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.parameters import given_of, meaning_of
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import ParametersAnswer
from gpu_scheduler.protocol.keys import KeyRole
from orchgpu.web.console import CONSOLE
from orchgpu.web.http.answers import answered, body_of
from orchgpu.web.http.security import session_of

ROUTES = web.RouteTableDef()


class SettingItem(Value):
    """One parameter."""

    name: str  #: as `set` takes it
    value: object
    overridden: bool  #: an operator changed it
    meaning: str = ""
    choices: tuple[str, ...] = ()  #: () = free text


def settings_json(found: ParametersAnswer, *, may_change: bool) -> dict[str, object]:
    return {
        "policies": list(_policies(found)),
        "parameters": list(_plain(found)),
        "quotas": list(_quotas(found)),
        "installed": found.policies,
        "may_change": may_change,
    }


def _policies(found: ParametersAnswer) -> Iterator[SettingItem]:
    chosen = next((one for one in found.policies if one.name == found.parameters.policy), None)
    yield SettingItem(
        name="policy",
        value=found.parameters.policy,
        overridden="policy" in found.overridden,
        meaning="" if chosen is None else chosen.summary,
        choices=tuple(one.name for one in found.policies),
    )
    for parameter in () if chosen is None else chosen.parameters:
        name = f"policy.{found.parameters.policy}.{parameter.name}"
        yield SettingItem(
            name=name,
            value=chosen.values.get(parameter.name, parameter.default) if chosen else None,
            overridden=name in found.overridden,
            meaning=parameter.meaning,
            choices=tuple(str(one) for one in parameter.choices),
        )


def _plain(found: ParametersAnswer) -> Iterator[SettingItem]:
    for name, value in encode(found.parameters).items():
        if name not in ("policy", "weights", "quotas", "policy_parameters"):
            yield _item(name, value, found)


def _quotas(found: ParametersAnswer) -> Iterator[SettingItem]:
    for tenant, weight in sorted(found.parameters.weights.items()):
        yield _item(f"weight.{tenant}", weight, found)
    for tenant, quota in sorted(found.parameters.quotas.items()):
        for limit, value in encode(quota).items():
            yield _item(f"quota.{tenant}.{limit}", value, found)


def _item(name: str, value: object, found: ParametersAnswer) -> SettingItem:
    overridden = name in found.overridden
    return SettingItem(name=name, value=value, overridden=overridden, meaning=meaning_of(name))


@ROUTES.get("/api/settings")
async def read(request: web.Request) -> web.Response:
    session, console = await session_of(request), request.app[CONSOLE]

    async def question(client: SchedulerClient) -> ParametersAnswer:
        return await client.ask(ops.ParametersOf())

    found = await console.scheduler.ask(session.key, question)
    shown = settings_json(found, may_change=session.viewer.role is KeyRole.OPERATOR)
    return answered({**shown, "drained": console.picture.fleet.drained()})


@ROUTES.post("/api/settings")
async def change(request: web.Request) -> web.Response:
    """Change one parameter, durably and at once."""
    session, console = await session_of(request), request.app[CONSOLE]
    given = await body_of(request, {"name": str, "value": object})
    session.viewer.require(KeyRole.OPERATOR, "a change of a parameter")
    value = given["value"]
    if value is not None and not isinstance(value, (str, int, float, bool)):
        raise invalid("value must be a word, a number, true, false or null")

    async def question(client: SchedulerClient) -> ParametersAnswer:
        name = str(given["name"])
        read = given_of(name, value) if isinstance(value, str) else value
        return await client.ask(ops.SetParameter(name=name, value=read))

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
    session.viewer.require(KeyRole.OPERATOR, "a drain")
    name, device_id = console.picture.fleet.target_of(str(given["target"]))
    host, device = HostId(name), None if device_id is None else DeviceId(device_id)

    async def question(client: SchedulerClient) -> None:
        if drained:
            await client.ask(
                ops.Drain(host=host, device=device, revoke=given.get("revoke") is True)
            )
        else:
            await client.ask(ops.Undrain(host=host, device=device))

    await console.scheduler.ask(session.key, question)
    console.feed.wake()
    return answered({"host": host, "device": device, "drained": drained})
