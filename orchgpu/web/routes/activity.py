"""Use of the devices and measures over time, out of the history."""

from __future__ import annotations

from aiohttp import web

from orchgpu.history.reader import DeviceSpans, LeaseSpan
from orchgpu.jobs.rights import KeyRights
from orchgpu.web.console import CONSOLE
from orchgpu.web.http.answers import answered, number_of
from orchgpu.web.http.security import session_of
from orchgpu.web.model.fleet import Fleet
from orchgpu.web.shared_answers import SINCE_S

ROUTES = web.RouteTableDef()
#: Leases of one device: the newest.
SPANS_MAX = 200


@ROUTES.get("/api/activity")
async def activity(request: web.Request) -> web.Response:
    """The last `since_s` seconds, as the viewer may read them."""
    session, since_s = await session_of(request), number_of(request, "since_s")
    console = request.app[CONSOLE]
    found = await console.activity.of(SINCE_S if since_s is None else since_s)
    devices = [
        {
            **_named(one, console.picture.fleet),
            "spans": [_span(span, session.viewer) for span in one.spans[-SPANS_MAX:]],
        }
        for one in found.devices
    ]
    return answered(
        {
            "devices": devices,
            "devices_total": found.devices_total,
            "series": found.series,
            "hosts": found.hosts,
        }
    )


def _named(one: DeviceSpans, fleet: Fleet) -> dict[str, str]:
    """Name and model of a device: of the fleet's, else, for one that left, of its last lease."""
    present = fleet.device(one.host, one.device)
    if present is not None:
        return {"device": f"{one.host}/{present.index}", "model": present.model}
    name, _, model = one.name.partition(" ")
    return {"device": name or one.device, "model": model}


def _span(span: LeaseSpan, viewer: KeyRights) -> dict[str, object]:
    theirs = viewer.sees_all or (viewer.tenant is not None and viewer.tenant == span.tenant)
    return {
        "start_s": span.start_s,
        "end_s": span.end_s,
        "job": span.job,
        "function": span.function if theirs else None,
        "tenant": span.tenant,
        "cold": span.cold,
        "reason": span.reason,
    }
