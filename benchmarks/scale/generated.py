"""A generated system of any size, by the contract of the console's server: hosts, jobs, figures.

Each item follows from its number, so that 100,000 jobs need no memory and look the same each time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

Json = dict[str, object]

FUNCTIONS = ("yolo-detect", "whisper-small", "blast-search", "thumbnail", "resnet-batch")
TENANTS = ("vision", "speech", "genomics")
ENDED = {"SUCCEEDED", "FAILED", "CANCELLED"}
#: state of job i modulo 100, by the upper bound of each
STATES = ((3, "WAITING"), (4, "RESERVED"), (5, "STAGED"), (9, "RUNNING"), (93, "SUCCEEDED"))
WARM_KEY = "workload:3fa9c1d2"  #: of the first function
MODELS = (("NVIDIA H100 80GB HBM3", 81920), ("NVIDIA A100 40GB", 40960), ("NVIDIA L4", 23034))


@dataclass
class GeneratedSystem:
    """Hosts with devices and numbered jobs, at one moment."""

    hosts: int = 3
    devices_per_host: int = 4
    jobs: int = 400
    waiting: int = 60
    now_s: float = 1_790_000_000.0
    connected: bool = True  #: with the scheduler
    key: str = "uploads/input-{:06d}.jpg"  #: of the input of a job
    drained: set[str] = field(default_factory=set)
    #: states that replace the generated one: number of a job → state
    changed: dict[int, str] = field(default_factory=dict)

    # ------------------------------------------------------------------ fleet

    def host(self, number: int) -> Json:
        name = f"gpu{number:04d}"
        drained = name in self.drained
        return {
            "host": name,
            "state": "DRAINED" if drained else "UP",
            "address": f"10.0.{number // 250}.{number % 250}:4790",
            "last_seen_s": self.now_s - 0.4,
            "offers": "data proteins; programs blast" if number == 0 else "",
            "devices": [self._device(number, one) for one in range(self.devices_per_host)],
        }

    def _device(self, host: int, index: int) -> Json:
        number = host * self.devices_per_host + index
        model, memory_mib = MODELS[host % len(MODELS)]
        leases = [
            self._lease(number, one, memory_mib)
            for one in range((index * 7 + host) % (1 + host % 5))
        ]
        shares = [one["memory_mib"] for one in leases]
        used_mib = sum(one for one in shares if isinstance(one, int))
        drained = f"gpu{host:04d}" in self.drained
        return {
            "device": f"GPU-{_hash(f'device {number}', 8)}",
            "index": index,
            "model": model,
            "kind": "cuda",
            "state": "drained" if drained else "busy" if leases else "idle",
            "health": "OK",
            "drained": drained,
            "detail": "",
            "memory_mib": memory_mib,
            "memory_used_mib": used_mib,
            "compute_pct": 100,
            "compute_used_pct": 25 * len(leases),
            "utilisation_pct": min(100, 19 * len(leases) + number % 7),
            "temperature_c": 38 + 9 * len(leases),
            "power_w": 70 + 95 * len(leases),
            "leases": leases,
            "residents": [{"workload": WARM_KEY, "tenant": None, "memory_mib": 900}]
            if number % 3 == 0
            else [],
        }

    def _lease(self, device: int, index: int, memory_mib: int) -> Json:
        job = self.job_id(device * 4 + index)
        return {
            "lease": _hash(f"lease {device} {index}", 12),
            "attempt": f"{job}:1",
            "job": job,
            "tenant": TENANTS[(device + index) % len(TENANTS)],
            "memory_mib": memory_mib * (index + 1) // 10,
            "compute_pct": 25,
            "ends_s": self.now_s + 40 + 17 * index,
        }

    def summary(self, number: int) -> Json:
        host = self.host(number)
        devices = host["devices"]
        assert isinstance(devices, list)
        used = sum(one["memory_used_mib"] for one in devices)
        return {
            "host": host["host"],
            "state": host["state"],
            "devices": len(devices),
            "busy": sum(bool(one["leases"]) for one in devices),
            "memory_used_ratio": used / sum(one["memory_mib"] for one in devices),
            "compute_used_ratio": sum(one["compute_used_pct"] for one in devices)
            / (100 * len(devices)),
        }

    def overview(self) -> Json:
        devices = self.hosts * self.devices_per_host
        drained = len(self.drained) * self.devices_per_host
        busy = (devices - drained) * 3 // 4
        states = dict.fromkeys(("WAITING", "RUNNING"), self.jobs * 4 // 100)
        ended = {"SUCCEEDED": self.jobs * 84 // 100, "FAILED": self.jobs * 7 // 100}
        return {
            "hosts": self.hosts,
            "hosts_by_state": {"UP": self.hosts - len(self.drained)},
            "devices": devices,
            "devices_by_state": {"busy": busy, "idle": devices - busy},
            "leases": busy * 2,
            "waiting": self.waiting,
            "jobs": self.jobs,
            "jobs_by_state": states | ended,
            "utilisation_ratio": 0.62,
            "connected": self.connected,
            "as_of_s": self.now_s,
        }

    # ------------------------------------------------------------------ jobs

    def job_id(self, number: int) -> str:
        return _hash(f"job {number % max(1, self.jobs)}", 40)

    def state(self, number: int) -> str:
        if number in self.changed:
            return self.changed[number]
        part = number % 100
        return next((state for bound, state in STATES if part < bound), "FAILED")

    def job(self, number: int) -> Json:
        """The job of this number; 0 is the newest."""
        state, function = self.state(number), FUNCTIONS[number % len(FUNCTIONS)]
        received_s = self.now_s - 4 - 2.5 * number
        return {
            "job": self.job_id(number),
            "function": function,
            "key": self.key.format(number),
            "bucket": f"{function}-in",
            "state": state,
            "reason": {"FAILED": "EXIT_NONZERO", "WAITING": "BUSY"}.get(state, "NONE"),
            "attempt": 3 if state == "FAILED" else 1,
            "received_s": received_s,
            "changed_s": received_s + (9.4 if state in ENDED else 1.2),
            "device": f"gpu{number % self.hosts:04d}/0 {MODELS[0][0]}",
            "tenant": TENANTS[number % len(TENANTS)],
        }

    def queued(self, number: int) -> Json:
        reasons = ("BUSY", "QUEUED_BEHIND", "QUOTA", "HELD_BY_POLICY")
        job = self.job(number)
        return {
            "position": number + 1,
            "attempt": f"{job['job']}:1",
            "job": job["job"],
            "function": job["function"],
            "key": job["key"],
            "tenant": job["tenant"],
            "priority": (number % 3) * 10,
            "waiting_s": 2.4 + 3 * (self.waiting - number),
            "reason": reasons[number % len(reasons)],
            "sentence": "2 devices fit, and both are leased",
            "expected_s": None if number % 4 == 3 else 5.0 + 2 * number,
            "wants": "1 × cuda, 8 GiB, 25 %",
        }

    def story(self, number: int, *, may_change: bool) -> Json:
        job = self.job(number)
        failed, waiting = job["state"] == "FAILED", job["state"] == "WAITING"
        detail = "exit status 1: CUDA error: out of memory"
        tail = "batch 41: 16 images\nCUDA error: out of memory\n"
        failure = {"attempt": 1, "reason": "EXIT_NONZERO", "detail": detail, "log_tail": tail}
        sentence = "2 devices fit, and both are leased"
        return {
            **job,
            "timeline": self.timeline(number),
            "latencies": {"rlat": 1.2, "dlat": 0.6, "elat": 5.8},
            "attempts": [failure] if failed else [],
            "explain": {"text": sentence, "expected_s": 12.0} if waiting else None,
            "result": {"detail": detail, "log_tail": tail} if failed else None,
            "may_change": may_change,
            "may_retry": failed,
        }

    def log_lines(self, count: int) -> list[Json]:
        return [
            {
                "time_s": self.now_s + number / 50,
                "stream": "function" if number % 40 else "scheduler",
                "text": f"batch {number}: 16 images, loss {1 / (number + 1):.5f}",
            }
            for number in range(count)
        ]

    # ------------------------------------------------------------------ functions

    def function(self, name: str) -> Json:
        return {
            "name": name,
            "gpu": "1 × cuda with 8192 MiB, 25 % compute",
            "tenant": TENANTS[0],
            "inputs": [f"{name}-in"],
            "outputs": [f"{name}-out"],
            "changed_s": self.now_s - 9000,
            "revision": "3fa9c1d2",
            "jobs_kept": True,
            "warm_keys": [WARM_KEY] if name == FUNCTIONS[0] else [],
            "jobs": self.jobs // len(FUNCTIONS),
        }

    def workflow(self, name: str) -> Json:
        nodes = [
            {"id": "in", "kind": "place", "label": f"{name}-in", "device": ""},
            {"id": "f", "kind": "function", "label": name, "device": "1 × cuda"},
            {"id": "out", "kind": "place", "label": f"{name}-out", "device": ""},
        ]
        edges = [{"from": "in", "to": "f"}, {"from": "f", "to": "out"}]
        revisions = [
            {"revision": 4, "changed_s": self.now_s - 9000, "note": "files", "current": True},
            {"revision": 3, "changed_s": self.now_s - 90000, "note": "gpu", "current": False},
        ]
        text = f"  - lambda:\n      name: {name}\n      timeout: 120\n    gpu: {{memory: 8GiB}}"
        definition = {"file": "fdl.yaml", "line": 3, "text": text}
        graph = {"nodes": nodes, "edges": edges}
        return {"definition": definition, "graph": graph, "revisions": revisions}

    def timeline(self, number: int) -> list[Json]:
        job = self.job(number)
        start_s = job["received_s"]
        assert isinstance(start_s, float)
        steps = [
            ("queued", "queue", 0.0, 0.3),
            ("waits", "scheduler", 0.3, 1.5),
            ("staging", "scheduler", 1.5, 2.1),
            ("cold start", "function", 2.1, 3.4),
            ("running", "function", 3.4, 9.2),
            ("result", "function", 9.2, 9.4),
            ("reserved", "device", 1.5, 3.5),
            ("session", "device", 3.5, 9.2),
        ]
        if job["state"] not in ENDED:
            steps = steps[:5]
        last = steps[-1][0]
        return [
            {
                "name": name,
                "lane": lane,
                "start_s": start_s + begin,
                "end_s": None if name == last == "running" else start_s + end,
                "attempt": 1,
            }
            for name, lane, begin, end in steps
        ]

    # ------------------------------------------------------------------ activity

    def activity(self, since_s: float, devices_max: int = 200) -> Json:
        begin_s = self.now_s - since_s
        points = 120
        times = [begin_s + since_s * one / points for one in range(points)]
        devices = min(devices_max, self.hosts * self.devices_per_host)
        return {
            "devices_total": self.hosts * self.devices_per_host,
            "devices": [self._activity_row(one, begin_s, since_s) for one in range(devices)],
            "series": {
                "time_s": times,
                "rfast": [1.2 + 0.5 * _wave(one, 9) for one in range(points)],
                "rlat": [1.8 + _wave(one, 13) for one in range(points)],
                "dlat": [0.6 + 0.4 * _wave(one, 7) for one in range(points)],
                "elat": [4.2 + 1.4 * _wave(one, 17) for one in range(points)],
                "cold_starts": [one * 7 % 4 for one in range(points)],
                "warm_starts": [one * 5 % 9 for one in range(points)],
                "utilisation": [0.55 + 0.3 * _wave(one, 23) for one in range(points)],
            },
        }

    def _activity_row(self, device: int, begin_s: float, since_s: float) -> Json:
        return {
            "device": f"gpu{device // self.devices_per_host:04d}/{device % self.devices_per_host}",
            "model": MODELS[device // self.devices_per_host % len(MODELS)][0],
            "spans": list(self._spans(device, begin_s, since_s)),
        }

    def _spans(self, device: int, begin_s: float, since_s: float) -> Iterator[Json]:
        at_s = begin_s + 10 * (device % 5)
        number = device
        while at_s < begin_s + since_s:
            length_s = since_s * (0.01 + 0.03 * (number * 7 % 5))
            yield {
                "start_s": at_s,
                "end_s": min(at_s + length_s, begin_s + since_s),
                "job": self.job_id(number),
                "function": FUNCTIONS[number % len(FUNCTIONS)],
                "tenant": TENANTS[number % len(TENANTS)],
                "cold": number % 6 == 0,
            }
            at_s += length_s * (0.7 if device % 4 == 1 else 1.3)
            number += 1


def _hash(text: str, length: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _wave(at: int, period: int) -> float:
    return 0.5 + 0.5 * math.sin(at / period * math.tau)
