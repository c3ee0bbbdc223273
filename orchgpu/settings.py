"""The settings of one orchestrator process; everything else comes from the registry."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gpu_scheduler.client.access import Access


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorSettings:
    """Everything `orchgpu.app.run` needs. Endpoints of the cloud come from the environment."""

    cloud: str = "aws"  #: a package of `orchgpu.adapters`
    scheduler: str  #: "address:port" of ssgmd's socket endpoint
    access: Access = field(default_factory=Access)  #: to it: the key, and the CA of its TLS
    ready_file: Path | None = None  #: written once it serves: {"pid", "replica"}
    functions: tuple[str, ...] = ()  #: serve only these; empty = every deployed function
    metrics: str | None = None  #: "address:port" of the metrics endpoint; None = none
    emf: str | None = None  #: CloudWatch namespace of metrics in the log; None = none there
    replica: str | None = None  #: name in logs and sessions; None = made from host and pid
