"""The dependencies of every service of the server."""

from __future__ import annotations

from dataclasses import dataclass, field

from corekit.aio.supervise import Nursery
from local_cloud.model.cloud import Cloud
from local_cloud.process import CloudClock
from local_cloud.sandbox.batch_jobs import BatchProcesses
from local_cloud.sandbox.log_store import LogStore
from local_cloud.sandbox.runner import Runner
from local_cloud.server.bodies import FileBodies
from local_cloud.server.polling import Pollers
from local_cloud.server.signatures import Verifier
from local_cloud.server.state_log import StateLog


@dataclass(slots=True, kw_only=True)
class Context:
    """The model and its surroundings; `endpoint` is where clients reach this server."""

    cloud: Cloud
    clock: CloudClock
    state: StateLog
    bodies: FileBodies
    pollers: Pollers
    logs: LogStore
    nursery: Nursery
    verifier: Verifier
    endpoint: str = ""
    allowed_hosts: tuple[str, ...] = ()  #: additional host names that clients may use
    runner: Runner = field(init=False)  #: set once, before the first request
    batch: BatchProcesses = field(init=False)  #: the same

    def now_s(self) -> float:
        """The model's time."""
        return self.clock.now_s()
