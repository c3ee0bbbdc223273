"""The command line of one container, from the order of a run and the facts of the host. Pure.

The user's code gets what a lease's worker gets, and no more: the user of its lease, no
capabilities, no network, its own folder, its own memory and tasks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from corekit.errors import AppError, ErrorCode, invalid
from remote_gpu.isolation.policy import TASKS_MAX

#: Open files of one process; podman's own default is above the hard limit of many services.
_FILES_MAX = 4096
DATA_FOLDER = "/mnt/data"  #: of declared data sets, as the container sees it
_SHM_MIB = 64  #: shared memory, charged to the run's like `/tmp`
#: podman reads a variables' file by lines of 64 KiB.
_VARIABLE_BYTES_MAX = 60_000
#: Of names: their container's, and that of its label.
PREFIX, LEASE_LABEL = "orchgpu-", "orchgpu.lease"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The facts of this host that were tried and work."""

    podman: Path
    version: str  #: of podman
    store: Path  #: folder of this host's own images and containers
    run: Path  #: folder of their state; it ends with the machine
    runtime: str = ""  #: OCI runtime; "" = podman's default
    rootless: bool = False
    network_refused: str = ""  #: the reason why containers have no network; "" = they may

    def line(self, *words: str) -> list[str]:
        """A command of podman on this host's own store."""
        chosen = [f"--runtime={self.runtime}"] if self.runtime else []
        store = [f"--root={self.store}", f"--runroot={self.run}", f"--tmpdir={self.run}/libpod"]
        return [str(self.podman), *store, *chosen, *words]


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """One container, all values checked."""

    lease: str
    image: str  #: id in the store
    user: int
    group: int
    folder: Path  #: the run's, writable and at the same path inside
    workdir: str  #: in it, as the container sees it
    variables: Path  #: file of `variables_file`
    memory_mib: int
    timeout_s: float
    command: tuple[str, ...] = ()  #: empty = the image's own
    network: bool = False
    devices: tuple[str, ...] = ()  #: `--device` values
    data: Mapping[str, Path] = field(default_factory=dict)  #: declared data sets, read-only


def name_of(lease: str) -> str:
    """The name of a lease's container."""
    return f"{PREFIX}{lease}"


def run_words(runtime: Runtime, container: Container) -> list[str]:
    """The words for `Runtime.line`: podman returns at the container's end with its exit status.

    Its files are the image's, read-only, and `/tmp`; both `/tmp` and shared memory count as the
    run's memory. podman itself ends it `timeout_s` after its start, also where gpud has died.
    """
    own = str(container.folder)
    options = [
        f"--name={name_of(container.lease)}",
        f"--label={LEASE_LABEL}={container.lease}",
        "--pull=never",
        f"--network={'slirp4netns' if container.network else 'none'}",
        "--http-proxy=false",
        "--no-hosts",
        "--hostname=run",
        "--read-only",
        "--read-only-tmpfs=false",
        f"--tmpfs=/tmp:rw,nosuid,nodev,mode=1777,size={max(1, container.memory_mib // 2)}m",
        f"--shm-size={_SHM_MIB}m",
        f"--volume={own}:{own}:rw,nosuid,nodev",
        *(
            f"--volume={path}:{DATA_FOLDER}/{name}:ro,nosuid,nodev"
            for name, path in container.data.items()
        ),
        "--image-volume=ignore",
        f"--workdir={container.workdir}",
        f"--memory={container.memory_mib}m",
        f"--memory-swap={container.memory_mib}m",
        f"--pids-limit={TASKS_MAX}",
        f"--ulimit=nofile={_FILES_MAX}:{_FILES_MAX}",
        f"--ulimit=nproc={TASKS_MAX}:{TASKS_MAX}",
        "--ulimit=core=0:0",
        "--cap-drop=all",
        "--security-opt=no-new-privileges",
        *(["--userns=keep-id"] if runtime.rootless else []),
        f"--user={container.user}:{container.group}",
        "--cgroupns=private",
        "--ipc=private",
        *(f"--device={device}" for device in container.devices),
        "--init",
        "--systemd=false",
        "--sdnotify=ignore",
        "--no-healthcheck",
        "--log-driver=none",
        f"--timeout={max(1, round(container.timeout_s))}",
        f"--env-file={container.variables}",
    ]
    if container.command:
        options.append(f"--entrypoint={json.dumps(list(container.command))}")
    return ["run", *options, container.image]


def variables_file(variables: Mapping[str, str]) -> str:
    """The variables as podman reads them. Raises INVALID for one that it cannot read.

    A file, because any user of the machine may read a command line, and podman's own environment
    (`PATH`, `LD_PRELOAD`) is not the tenant's to set.
    """
    for name, value in variables.items():
        if not name.isidentifier() or not name.isascii():
            raise invalid(f"variable {name!r} is not a name")
        if "\n" in value or "\r" in value or "\0" in value:
            raise invalid(f"variable {name} has a line break, which no container can get")
        if len(value.encode()) > _VARIABLE_BYTES_MAX:
            raise invalid(f"variable {name} is over {_VARIABLE_BYTES_MAX} bytes")
    return "".join(f"{name}={value}\n" for name, value in variables.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """The ways to give containers the cards of this host."""

    cdi: frozenset[str] = frozenset()  #: full names, as "nvidia.com/gpu=GPU-…"
    minors: Mapping[str, int] = field(default_factory=dict)  #: NVIDIA's UUID → number of its node
    nodes: frozenset[str] = frozenset()  #: existing ones below /dev


_CDI = "nvidia.com/gpu="
#: Device files that all NVIDIA cards share, and those of cards with an OpenCL driver.
_NVIDIA = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
_OPENCL = ("/dev/dri", "/dev/kfd")


def devices_of(cards: Cards, shares: Mapping[str, str]) -> tuple[str, ...]:
    """The `--device` values for the shares of a lease: device id → kind.

    By the card's CDI name where the host has it: the container then gets the driver's libraries
    too. Otherwise its nodes alone, and the image must have the libraries of the host's driver.
    Raises AppError(UNAVAILABLE) for a card that can be given by neither.
    """
    found: dict[str, None] = {}
    for device, kind in shares.items():
        if kind == "cuda":
            found.update(dict.fromkeys(_nvidia(cards, device)))
        elif kind == "opencl":
            found.update(dict.fromkeys(one for one in _OPENCL if one in cards.nodes))
    return tuple(found)


def _nvidia(cards: Cards, device: str) -> list[str]:
    if (name := f"{_CDI}{device}") in cards.cdi:
        return [name]
    if device not in cards.minors:
        text = f"{device} has no CDI name on this host: run `nvidia-ctk cdi generate` there"
        raise AppError(ErrorCode.UNAVAILABLE, text)
    node = f"/dev/nvidia{cards.minors[device]}"
    return [node, *(one for one in _NVIDIA if one in cards.nodes)]
