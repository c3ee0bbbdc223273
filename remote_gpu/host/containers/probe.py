"""The containers that work on this machine: tried once, when gpud starts.

The trial is a container with all options of a run's. Its image is empty: its program is the init
that podman mounts into every container (`--init`), so the trial fetches nothing.
"""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from corekit.errors import AppError, ErrorCode
from remote_gpu.host.containers.command import Container, Runtime, name_of, run_words
from remote_gpu.host.containers.podman import Podman
from remote_gpu.isolation import users

logger = logging.getLogger(__name__)

_CALL_S = 30.0  #: each trial takes half a second on an idle machine
_RUNTIMES = ("crun", "runc")  #: of distributions; podman has one of them as its default
_INIT = ("/run/podman-init", "-V")


async def find(store: Path, run: Path) -> Runtime:
    """The runtime of this machine, logged. Raises AppError(UNAVAILABLE), with the reason."""
    if (program := shutil.which("podman")) is None:
        raise AppError(ErrorCode.UNAVAILABLE, "podman is not installed")
    found = Runtime(podman=Path(program), version="", store=store, run=run)
    info = json.loads(await Podman(found).call("info", "--format=json", limit_s=_CALL_S))
    found = _described(found, info)
    image = (
        await Podman(found).call("import", "--quiet", "-", limit_s=_CALL_S, given=_empty_tar())
    ).strip()
    why: dict[str, str] = {}
    try:
        for name in ("", *_others(info)):
            tried = replace(found, runtime=name)
            if not (reason := await _tried(tried, image, network=False)):
                refused = await _tried(tried, image, network=True)
                found = replace(tried, network_refused=refused)
                break
            why[name or "default"] = reason
        else:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in why.items())
            raise AppError(ErrorCode.UNAVAILABLE, f"no OCI runtime works here: {reasons}")
    finally:
        await Podman(found).call("rmi", "--force", image, limit_s=_CALL_S)
    about = {
        "event": "containers",
        "podman": found.version,
        "runtime": found.runtime or "default",
        "rootless": found.rootless,
        "cgroup": 1 if info["host"]["cgroupVersion"] == "v1" else 2,
        "without": why,
        "no_network": found.network_refused,
    }
    logger.info("images of runs are served by podman", extra=about)
    return found


def _described(runtime: Runtime, info: Mapping[str, Any]) -> Runtime:
    """The runtime with podman's own facts. Raises AppError(UNAVAILABLE) without limits."""
    host = info["host"]
    missing = {"memory", "pids"} - set(host["cgroupControllers"] or ())
    if missing:
        text = f"podman cannot limit {' and '.join(sorted(missing))} here ({host['cgroupVersion']})"
        raise AppError(ErrorCode.UNAVAILABLE, text)
    return replace(
        runtime,
        version=str(info["version"]["Version"]),
        rootless=bool(host["security"]["rootless"]),
    )


def _others(info: Mapping[str, Any]) -> list[str]:
    default = info["host"]["ociRuntime"]["name"]
    return [name for name in _RUNTIMES if name != default and shutil.which(name) is not None]


async def _tried(runtime: Runtime, image: str, *, network: bool) -> str:
    """The reason why a container of a run would not start; "" = it would."""
    podman = Podman(runtime)
    with tempfile.TemporaryDirectory(prefix="orchgpu-containers-") as place:
        container = _trial(runtime, image, Path(place), network=network)
        try:
            await podman.call(*run_words(runtime, container), limit_s=_CALL_S)
        except AppError as error:
            return error.message
        finally:
            await podman.remove(name_of(container.lease), _CALL_S)
    return ""


def _trial(runtime: Runtime, image: str, place: Path, *, network: bool) -> Container:
    folder, variables = place / "run", place / "variables"
    folder.mkdir()
    variables.touch()
    return Container(
        lease="probe",
        image=image,
        user=os.geteuid() if runtime.rootless else users.RANGE.start,
        group=os.getegid() if runtime.rootless else users.RANGE.start,
        folder=folder,
        workdir=str(folder),
        variables=variables,
        memory_mib=64,
        timeout_s=_CALL_S,
        command=_INIT,
        network=network,
    )


def _empty_tar() -> bytes:
    archive = io.BytesIO()
    tarfile.open(fileobj=archive, mode="w").close()
    return archive.getvalue()
