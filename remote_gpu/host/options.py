"""The command-line options of `gpud`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from corekit.cli.settings import Option
from gpu_scheduler.client.access import CA_VARIABLE, KEY_FILE_VARIABLE
from remote_gpu.host.devices.excess_table import OnExcess
from remote_gpu.isolation.policy import IsolationSetting as Isolation
from remote_gpu.worker.settings import WorkerOptions


class OpenClDevices(StrEnum):
    """The OpenCL devices to lend."""

    NONE = "none"
    CARDS = "cards"
    ALL = "all"


class WatchMetadata(StrEnum):
    """Whether the EC2 instance metadata is watched."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class OnRebalance(StrEnum):
    """The effect of a rebalance recommendation."""

    DRAIN = "drain"
    IGNORE = "ignore"


@dataclass(frozen=True, kw_only=True)
class OwnOptions:
    """The options that gpud itself follows."""

    host_id: Annotated[str, Option("Name of this host, unique in the system.")]
    scheduler: Annotated[
        str,
        Option("Socket endpoint of ssgmd, and those of its standbys.", metavar="ADDRESS:PORT[,…]"),
    ]
    listen: Annotated[str, Option("Address of the gateway; port 0: any free port.")] = "127.0.0.1:0"
    advertise: Annotated[
        str,
        Option(
            "Address of the gateway for functions. [default: that of --listen]",
            metavar="ADDRESS:PORT",
        ),
    ] = ""
    door_ports: Annotated[
        str, Option("Ports of classic leases. [default: any]", metavar="FIRST-LAST")
    ] = ""
    key_file: Annotated[
        Path | None, Option(f"File with the key for ssgmd. [default: ${KEY_FILE_VARIABLE}]")
    ] = None
    join_iam: Annotated[
        str,
        Option(
            "Join by this machine's IAM role instead of a key; SERVER is the name of the scheduler"
            " in its --join-iam file. The region is that of AWS_REGION or AWS_DEFAULT_REGION, STS's"
            " endpoint that of AWS_ENDPOINT_URL_STS or the region's.",
            metavar="SERVER",
        ),
    ] = ""
    ca: Annotated[
        Path | None, Option(f"CA of ssgmd's certificate; enables TLS. [default: ${CA_VARIABLE}]")
    ] = None
    state: Annotated[Path, Option("Folder for logs and secrets of leases.")]
    cpus: Annotated[
        str, Option("Cores to lend, such as 0,2-3. [default: all that gpud may use]")
    ] = ""
    cpus_shared_with: Annotated[
        tuple[str, ...], Option("Another host with the same cores (repeatable).", metavar="HOST")
    ] = ()
    memory_mib: Annotated[str, Option("Memory to lend. [default: half of the machine's]")] = ""
    data: Annotated[
        tuple[str, ...],
        Option("Data on this host for all leases (repeatable).", metavar="NAME=PATH"),
    ] = ()
    data_space: Annotated[
        float,
        Option(
            "Space for data sets that functions declare, in GiB; 0: this host fetches none.",
            range=(0, 1_000_000),
        ),
    ] = 0.0
    data_source: Annotated[
        tuple[str, ...],
        Option(
            "A pattern of the sources that functions may declare, such as `s3://models/*`"
            " (repeatable): this host reads them with its own credentials. [default: all]",
            metavar="PATTERN",
        ),
    ] = ()
    operation: Annotated[
        tuple[str, ...],
        Option("An operation to offer (repeatable). [default: all]", metavar="NAME"),
    ] = ()
    program: Annotated[
        tuple[str, ...],
        Option("A command that the operation `exec` may run (repeatable).", metavar="NAME=COMMAND"),
    ] = ()
    run: Annotated[
        bool,
        Option(
            "Run functions with `execution: host` on this host, where its isolation allows it: see"
            " docs/how-to/host-execution.md."
        ),
    ] = True
    images_mib: Annotated[
        int,
        Option(
            "Run functions with an OCI image too, by podman, and keep this much of their images;"
            " 0: none is run.",
            range=(0, 1 << 30),
        ),
    ] = 0
    images_network: Annotated[
        bool,
        Option(
            "Let images with `network: true` open connections to all that this host reaches, also"
            " to the metadata of a cloud machine, which serves the credentials of its role."
        ),
    ] = False
    on_memory_excess: Annotated[
        OnExcess,
        Option(
            "Effect on a lease whose processes use more of an NVIDIA card's memory than it has, as"
            " the driver reports at two readings in a row."
        ),
    ] = OnExcess.END
    warm_workers: Annotated[
        bool,
        Option(
            "Keep workers that ran trusted operations only for the next lease of their workload."
        ),
    ] = True
    middleware: Annotated[
        tuple[str, ...],
        Option("Server of another middleware to offer (repeatable).", metavar="NAME=PROGRAM"),
    ] = ()
    tls_cert: Annotated[Path | None, Option("PEM file of the certificate; needs --tls-key.")] = None
    tls_key: Annotated[Path | None, Option("PEM file of its key, not encrypted.")] = None
    require_tls: Annotated[bool, Option("Require TLS of programs on this machine too.")] = False
    emulate: Annotated[
        Path | None,
        Option(
            "Lend the emulated devices of a file, and no card, for experiments: calls take the"
            " stated times.",
            metavar="FILE",
        ),
    ] = None
    nvml: Annotated[bool, Option("Lend NVIDIA devices, if there are any.")] = True
    opencl: Annotated[
        OpenClDevices,
        Option("OpenCL devices to lend; `all` includes CPUs, which --cpus lends already."),
    ] = OpenClDevices.NONE
    mps: Annotated[
        Path | None,
        Option(
            "Folder of NVIDIA's MPS control daemon, which limits each lease to its share.",
            metavar="FOLDER",
        ),
    ] = None
    isolation: Annotated[
        Isolation,
        Option(
            "Isolation of leases from each other and from this host; `none` suits one tenant only."
        ),
    ] = Isolation.AUTO
    drain_s: Annotated[
        float | None,
        Option(
            "Longest drain after SIGTERM, SIGINT or a notice without a time: leases that are left"
            " then end as PREEMPTED and their jobs are tried again; 0: the host ends at once."
            " [default: 120, as long as a spot interruption leaves]",
            range=(0, 86_400),
        ),
    ] = None
    ephemeral: Annotated[
        bool,
        Option(
            "This host does not come back under its name: the scheduler forgets it"
            " `forget_after_s` after it is gone."
        ),
    ] = False
    instance_metadata: Annotated[
        WatchMetadata,
        Option(
            "Drain at notices of the EC2 instance metadata: spot interruption, rebalance"
            " recommendation, Auto Scaling; `auto`: on an EC2 instance."
        ),
    ] = WatchMetadata.AUTO
    on_rebalance: Annotated[
        OnRebalance,
        Option("Effect of a rebalance recommendation, which is not always followed by more."),
    ] = OnRebalance.DRAIN
    metrics: Annotated[
        str | None,
        Option(
            "Serve metrics for Prometheus at this address, without a key: counts, the names of"
            " this host and of reasons. Port 0: any free one.",
            metavar="ADDRESS:PORT",
        ),
    ] = None
    ready_file: Annotated[
        Path | None, Option("JSON file, written once the host is registered.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class HostOptions(WorkerOptions, OwnOptions):
    """One field for each option of `gpud`."""

    @property
    def data_space_mib(self) -> int:
        """The space for declared data sets in MiB."""
        return round(self.data_space * 1024)

    @property
    def of_workers(self) -> WorkerOptions:
        """The options that the workers get."""
        return WorkerOptions(**{one.name: getattr(self, one.name) for one in fields(WorkerOptions)})
