"""Devices and users around the scheduler's core on virtual time, for tests of waits."""

from __future__ import annotations

from gpu_scheduler.model import Request
from gpu_scheduler.parameters import Parameters
from simulator.workloads.engine import Engine
from simulator.workloads.jobs import Job
from simulator.workloads.model import Arrival, HostSpec, Run, Workload

DEVICE_MIB = 1000
PER_HOST = 8


class Pool(Engine):
    """Equal devices; every request names the time for which its user holds the lease."""

    def __init__(self, devices: int, parameters: Parameters) -> None:
        whole, rest = divmod(devices, PER_HOST)
        hosts = [
            HostSpec(name="h", hosts=whole, devices=PER_HOST, memory_mib=DEVICE_MIB),
            HostSpec(name="rest", hosts=min(rest, 1), devices=rest, memory_mib=DEVICE_MIB),
        ]
        run = Run(hosts=tuple(spec for spec in hosts if spec.hosts * spec.devices))
        super().__init__(run, 1, configured=parameters)
        self.ahead: dict[str, int] = {}  #: attempt → requests that waited before it

    def hold(self, request: Request, runs_s: float) -> Job:
        """Send one request whose user holds its lease for this time."""
        arrival = Arrival(at_s=self.now_s, workload="job", execution_s=runs_s)
        job = self.ask(request, arrival, Workload(name="job"))
        queue = self.machine.state.queue
        if job.attempt in queue.entries:
            self.ahead[job.attempt] = (queue.position(queue.entries[job.attempt]) or 1) - 1
        return job

    def drain(self) -> None:
        """Let time pass until the queue is empty."""
        while self.machine.state.queue.entries:
            self.advance(self.now_s + 10.0)

    def bound_s(self, job: Job, longest_s: float) -> float:
        """Its longest wait, as every ordering policy states it, without lease above `longest_s`."""
        most = self.machine.state.parameters.bypass_max + 2
        return (self.ahead.get(job.attempt, 0) + 1) * most * longest_s
