"""Hosts of any cloud by SkyPilot's command line, which has an environment of its own.

A folder has a task of SkyPilot for each group, `GROUP.yaml`, which runs gpud, and may have
`skypilot.json` (`SkySettings`). A host is a cluster of one machine, and its id at the scheduler the
cluster's name. Orders, clusters and failures are those of SkyPilot's API server: nothing is kept
here. The forms of its answers are those of SkyPilot 0.14.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from corekit.decode import decode_json_known
from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import Value
from orchgpu.fleet.ports.port import PortGroup, PortHost

SETTINGS = "skypilot.json"
#: Requests of the API server that are read, the newest first.
_REQUESTS = 200
_ACTIVE = ("PENDING", "WAITING", "RUNNING")
_COMMAND_WITHIN_S = 120.0
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
T = TypeVar("T")


class SkySettings(Value):
    """The start of SkyPilot's program."""

    command: tuple[str, ...] = ("sky",)
    #: Between two looks; each starts two programs, which import much.
    look_s: float = 15.0


class _Request(Value):
    """One request to the API server: a line of `sky api status`."""

    request_id: str
    name: str
    status: str
    created_at: float
    cluster_name: str | None = None

    @property
    def active(self) -> bool:
        return self.status in _ACTIVE


class _Cluster(Value):
    """One line of `sky status`."""

    name: str
    status: str
    launched_at: float | None = None
    init_kind: str | None = None

    @property
    def come(self) -> bool:
        """It has a machine: one that starts is INIT, as is one that has failed since."""
        return self.status != "PENDING" and (self.status != "INIT" or self.init_kind == "unhealthy")


class _Seen(Value):
    """The state of the API server, and when it was asked for."""

    at_s: float
    requests: tuple[_Request, ...]
    clusters: tuple[_Cluster, ...]

    def launches(self, group: str) -> dict[str, _Request]:
        """The newest order of each host of a group; orders of hosts that end are left out."""
        found = [one for one in self.requests if one.name == "launch" and one.cluster_name]
        own = _names_of(group)
        return {
            str(one.cluster_name): one
            for one in sorted(found, key=lambda one: one.created_at)
            if own.fullmatch(str(one.cluster_name)) and one.cluster_name not in self._ending
        }

    def there(self, group: str) -> dict[str, _Cluster]:
        """The clusters of a group without those that end."""
        own = _names_of(group)
        return {
            one.name: one
            for one in self.clusters
            if own.fullmatch(one.name) and one.name not in self._ending
        }

    @property
    def newest_s(self) -> float:
        """The time of the newest request, by the server's clock."""
        return max((one.created_at for one in self.requests), default=0.0)

    @property
    def _ending(self) -> set[str | None]:
        return {one.cluster_name for one in self.requests if one.name == "down" and one.active}


class SkyFleet:
    """`FleetPort` of one folder, and of the API server that its program uses."""

    def __init__(self, folder: Path, wall_s: Callable[[], float] = time.time) -> None:
        """Raises INVALID for a folder that is not there, and wrong settings."""
        if not folder.is_dir():
            raise invalid(f"{folder} is not a folder with SkyPilot's tasks")
        self._folder, self._wall_s = folder, wall_s
        file = folder / SETTINGS
        self._settings = SkySettings()
        if file.exists():
            self._settings = decode_json_known(SkySettings, file.read_bytes(), SETTINGS)[0]
        #: By group: failures until then are of another order; by the clock of the API server.
        self._since_s: dict[str, float] = {}
        self._opened_s: float | None = None  #: of groups without an order here; None: not asked yet
        self._seen: _Seen | None = None

    async def list(self, groups: Sequence[str]) -> tuple[PortGroup, ...]:
        for name in groups:
            self._task(name)
        seen = await self._looked()
        return tuple(self._group(name, seen) for name in groups)

    def _group(self, name: str, seen: _Seen) -> PortGroup:
        clusters, launches = seen.there(name), seen.launches(name)
        hosts = [
            PortHost(id=one.name, launched_s=one.launched_at)
            for one in clusters.values()
            if one.come
        ]
        living = {*clusters, *(host for host, one in launches.items() if one.active)}
        since_s = self._since_s.get(name, self._opened_s or 0.0)
        failed = [
            one
            for host, one in launches.items()
            if host not in living and one.status == "FAILED" and one.created_at > since_s
        ]
        refusal = f"SkyPilot: `sky api logs {failed[-1].request_id}`" if failed else ""
        return PortGroup(
            name=name,
            size=len(living) + len(failed),
            hosts=tuple(sorted(hosts, key=lambda host: host.id)),
            refusal=refusal,
        )

    async def grow(self, group: str, size: int) -> None:
        task = self._task(group)
        with (self._folder / "lock").open("a") as lock:  # two fleets count the same hosts
            await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
            seen = await self._looked(fresh=True)
            living = {*seen.there(group)}
            living |= {host for host, one in seen.launches(group).items() if one.active}
            if len(living) < size:
                self._since_s[group] = seen.newest_s
            for _ in range(size - len(living)):
                host = f"{group}-{secrets.token_hex(3)}"
                named = ("--cluster", host, "--env", f"ORCHGPU_HOST={host}")
                await self._run("launch", "--yes", "--async", "--down", *named, str(task))

    async def withdraw(self, group: str) -> None:
        self._task(group)
        seen = await self._looked(fresh=True)
        clusters, launches = seen.there(group), seen.launches(group)
        for host in {*clusters, *(host for host, one in launches.items() if one.active)}:
            if host not in clusters or not clusters[host].come:
                await self._end(host, seen, group)
        self._since_s[group] = seen.newest_s

    async def stop(self, group: str, host: str) -> None:
        self._task(group)
        await self._end(host, await self._looked(fresh=True), group)

    async def _end(self, host: str, seen: _Seen, group: str) -> None:
        """End a host that is there or was ordered. An order is cancelled: of a cluster that is not
        there yet `down` knows nothing."""
        order = seen.launches(group).get(host)
        if order is not None and order.active:
            await self._run("api", "cancel", "--yes", order.request_id)
        if host in seen.there(group):
            await self._run("down", "--yes", "--async", host)

    async def close(self) -> None:
        """Do nothing: no connection is held."""

    # ------------------------------------------------------------------ the program

    def _task(self, group: str) -> Path:
        """The task of a group. Raises NOT_FOUND."""
        file = self._folder / f"{group}.yaml"
        if "/" in group or not file.is_file():
            text = f"{file} is missing: SkyPilot's task of the hosts of group {group}"
            raise AppError(ErrorCode.NOT_FOUND, text)
        return file

    async def _looked(self, *, fresh: bool = False) -> _Seen:
        """The state now, or that of a look shortly before."""
        seen, now_s = self._seen, self._wall_s()
        if fresh or seen is None or not 0 <= now_s - seen.at_s < self._settings.look_s:
            # requests first: one that ends in between has made its cluster
            requests = await self._answer(
                tuple[_Request, ...],
                *("api", "status", "--all", "--verbose", "--limit", str(_REQUESTS)),
            )
            clusters = await self._answer(tuple[_Cluster, ...], "status")
            seen = self._seen = _Seen(at_s=now_s, requests=requests, clusters=clusters)
            if self._opened_s is None:
                self._opened_s = seen.newest_s
        return seen

    async def _answer(self, kind: type[T], *arguments: str) -> T:
        text = await self._run(*arguments, "--output", "json")
        begin = re.search(r"^\[", text, re.MULTILINE)  # warnings come before it
        try:
            return decode_json_known(kind, text[begin.start() :].encode() if begin else b"")[0]
        except AppError as error:
            text = f"sky {arguments[0]}: its answer is not understood: {error.message}"
            raise AppError(ErrorCode.UNAVAILABLE, text) from None

    async def _run(self, *arguments: str) -> str:
        """Run the program; its output. Raises UNAVAILABLE when it fails, or takes too long."""
        if arguments[-1] != "json":
            self._seen = None
        named = f"sky {' '.join(arguments[:2])}"
        try:
            child = await asyncio.create_subprocess_exec(
                *(*self._settings.command, *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"},
            )
        except OSError as error:
            raise AppError(ErrorCode.UNAVAILABLE, f"{named}: {error}") from None
        try:
            async with asyncio.timeout(_COMMAND_WITHIN_S):
                out, errors = await child.communicate()
        except TimeoutError:
            text = f"{named}: no answer within {_COMMAND_WITHIN_S:.0f} s"
            raise AppError(ErrorCode.UNAVAILABLE, text) from None
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
                await child.wait()
        if child.returncode:
            lines = _COLOURS.sub("", (errors or out).decode(errors="replace")).split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "no message")
            raise AppError(ErrorCode.UNAVAILABLE, f"{named}: {last[:300]}")
        return out.decode(errors="replace")


def _names_of(group: str) -> re.Pattern[str]:
    return re.compile(rf"{re.escape(group)}-[0-9a-f]{{6}}")
