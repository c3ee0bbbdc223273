"""A host that admits every lease it is told of, and cuts it when it is over; it counts both.

python -m benchmarks.scheduler.host --ready-file FILE --scheduler ADDRESS --memory-mib N
"""

from __future__ import annotations

import argparse
from pathlib import Path

from aiohttp import web

from corekit.aio.process import run_program, write_ready
from corekit.budget import Budget
from corekit.ids import DeviceId, LeaseId
from gpu_scheduler.model import Device, DeviceKind, EndReason, Usage
from gpu_scheduler.monitor.link import HostLink
from gpu_scheduler.monitor.watched import WatchedHost
from gpu_scheduler.protocol.host import Install

NAME = "bench-host"


class AdmittingHost(WatchedHost):
    """The part of gpud that a grant waits for: a lease is known here, an ended one is cut."""

    def __init__(self) -> None:
        super().__init__()
        self.link: HostLink | None = None
        self.admitted = self.ended = 0

    def install(self, install: Install) -> None:
        super().install(install)
        self.admitted += 1

    def end(self, lease: LeaseId, fence: int, reason: EndReason) -> None:
        super().end(lease, fence, reason)
        self.ended += 1
        assert self.link is not None
        self.link.cut(lease)


class OneDevice:
    """The probe of one device."""

    def __init__(self, memory_mib: int) -> None:
        self._device = Device(
            id=DeviceId(f"{NAME}/0"),
            index=0,
            kind=DeviceKind.CUDA,
            model="bench",
            memory_mib=memory_mib,
        )

    async def devices(self) -> tuple[Device, ...]:
        return (self._device,)

    async def usage(self) -> tuple[Usage, ...]:
        return ()

    async def close(self) -> None:
        """Holds nothing."""


async def serve(scheduler: str, memory_mib: int, ready: Path) -> None:
    """Until told to stop; `GET /` gives the counts."""
    control = AdmittingHost()

    async def counts(_: web.Request) -> web.Response:
        return web.json_response({"admitted": control.admitted, "ended": control.ended})

    app = web.Application()
    app.router.add_get("/", counts)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    link = HostLink(
        scheduler,
        host=NAME,
        control=control,
        probe=OneDevice(memory_mib),
        gateway=f"127.0.0.1:{port}",
        budget=Budget(),
    )
    control.link = link
    try:
        async with link:
            await link.registered()
            write_ready(ready, {"http": f"127.0.0.1:{port}"})
            await link.failed()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ready-file", type=Path, required=True)
    parser.add_argument("--scheduler", required=True)
    parser.add_argument("--memory-mib", type=int, required=True)
    asked = parser.parse_args()
    run_program("host", serve(asked.scheduler, asked.memory_mib, asked.ready_file))
