"""A function beside its device: its run on the host of that, and data sets near it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from corekit.errors import invalid
from gpu_scheduler.names import HOST_CONTAINERS, HOST_IMAGES_NETWORK, HOST_RUNNER

#: Limits of a run on the host of its device. A job keeps its message for SQS's 12 h: an hour of
#: waiting, the run, its start and its end (`Budget.job_receipt_s_max` is checked against it).
HOST_MEMORY_MIB_MAX, HOST_TIMEOUT_S_MAX = 2**20, 39_000
#: Of an endpoint, side by side: as many lanes as a batch process takes of one lease.
ENDPOINT_CALLS_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """AWS Batch in place of a host: a job queue and a job definition of the user's."""

    queue: str
    definition: str
    start_s: float = 3600.0  #: Batch may take so long to start a run


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The `host:` block: the run of a function on the first host of its lease."""

    network: bool = False  #: whether the user's code may open connections beyond its device
    image: str | None = None  #: OCI image, by digest, in which `command` runs instead of a script
    command: tuple[str, ...] = ()  #: empty = the image's own
    warm: bool = False  #: whether the handler's process stays for the next job
    batch: Batch | None = None  #: None = on hosts with gpud

    def __post_init__(self) -> None:
        if self.command and self.image is None:
            raise invalid("command runs in an image: write image too")
        if self.batch is not None and (self.image or self.network or self.warm):
            raise invalid(
                "Batch's job definition names image and network, and its containers end with their"
                " jobs: leave out image, command, network and warm"
            )

    @property
    def log_group(self) -> str:
        """The log group of all containers in AWS Batch whose job definitions name no other."""
        return "/aws/batch/job" if self.batch else ""

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs that a host must have."""
        if self.batch is not None:
            return ()
        if self.image is None:
            return (HOST_RUNNER,)
        network = (HOST_IMAGES_NETWORK,) if self.network else ()
        return (HOST_RUNNER, HOST_CONTAINERS, *network)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The `endpoint:` block: the calls that a kept process answers."""

    enabled: bool = True
    idle_s: float = 60.0  #: it ends after this long without a call
    call_s: float = 60.0  #: the longest that one call may take
    calls_max: int | None = None  #: side by side; None: by the batch (`plan.functions`)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredData:
    """One entry of `data:`."""

    source: str  #: as written
    bytes: int = 0  #: `size`; 0 = not declared

    @property
    def of_host(self) -> bool:
        """True for a folder of the host (`gpud --data`)."""
        return self.source.startswith("host:")
