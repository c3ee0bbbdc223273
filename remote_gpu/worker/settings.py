"""The settings of a host's workers, as gpud sends them to the spawner: typed at both ends.

An option of gpud that workers follow is one field of `WorkerOptions`; operations read it from
`Context.options`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from corekit.cli.settings import Option
from corekit.values import Value
from remote_gpu.isolation.policy import IsolationPolicy
from remote_gpu.wire.uses import Uses
from remote_gpu.worker.emulation.devices import Emulation
from remote_gpu.worker.programs.programs import ListedProgram


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The options of gpud that its workers follow."""

    #: by default some round trips of a local network
    batch_wait_ms: Annotated[
        float,
        Option(
            "Longest wait of a call for others of the same model, to form one batch.",
            range=(0, 1000),
        ),
    ] = 2.0
    card_call_s: Annotated[
        float,
        Option(
            "Longest time for which one run or call may compute on an NVIDIA card: beyond it the"
            " lease ends with the reason, and the card is checked; 0: the lease's own time.",
            range=(0, 86_400),
        ),
    ] = 300.0
    pinned_mib: Annotated[
        int,
        Option(
            "Pinned memory of this machine for the payloads of a lease, per NVIDIA card; payloads"
            " beyond it are copied once more; 0: none.",
            range=(0, 1 << 20),
        ),
    ] = 256


#: Of a worker without a host, which no process of gpud watches.
WITHOUT_HOST = WorkerOptions(card_call_s=0.0)


class WorkerSettings(Value):
    """The settings of all workers of one host."""

    kept: Path  #: the host's folder of contents
    options: WorkerOptions = msgspec.field(default_factory=WorkerOptions)
    data: dict[str, Path] = msgspec.field(default_factory=dict)  #: host-resident data by name
    operations: tuple[str, ...] = ()  #: to offer; empty = all that load
    programs: dict[str, ListedProgram] = msgspec.field(default_factory=dict)  #: that `exec` may run
    digests: Uses = msgspec.field(default_factory=dict)  #: of data and programs, by kind and name
    policy: IsolationPolicy = msgspec.field(default_factory=IsolationPolicy)
    cpus: tuple[int, ...] = ()  #: cores of the spawner and its workers; empty = all
    handshake_s: float = 10.0  #: for the TLS handshake and the second proof
    tls: tuple[Path, Path] | None = None  #: certificate and key; None = no lane is in TLS
    emulation: Emulation = Emulation(devices=())
    emulated: tuple[str, ...] = ()  #: ids of the emulated devices

    def to_json(self) -> str:
        """The text that the spawner reads."""
        return msgspec.json.encode(self, enc_hook=str).decode()

    @classmethod
    def from_json(cls, text: str) -> WorkerSettings:
        return msgspec.json.decode(text, type=cls, dec_hook=lambda kind, given: kind(given))
