"""Two tenants with half of one device each: the part of the work that each of them gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from benchmarks.report import Figure
from remote_gpu.client import Session
from tools.gpu_check.part import Answer, Part, Target, bounded
from tools.gpu_check.system import session, system

PART = Part(
    title="Two tenants with 50 % of one device each, endless matrix products",
    order=50,
    limit_s=75,
    modules=("numpy", "msgspec", "aiohttp", "click", "rich"),
)
_LEAD_S = 8.0  #: for two interpreters, contexts and cuBLAS


def run(target: Target) -> Answer:
    seconds, lead_s = (2.0, 4.0) if target.quick else (20.0, _LEAD_S)
    side = 2048 if target.kind == "cuda" else 160
    with system(target) as host:
        leases = [session(host, target, 384, 50, tenant=name) for name in ("one", "two")]
        start_s = time.monotonic() + lead_s
        window = ["--start", str(start_s), "--end", str(start_s + seconds), "--side", str(side)]
        running = [_tenant(lease, window) for lease in leases]
        done = [_done(process) for process in running]
        for lease in leases:
            lease.close()
    share = 100 * done[0] / sum(done)
    error = abs(share - 50)
    return Answer(
        [
            bounded("two_tenants_error_points", error, "points", "<= 2"),
            Figure(metric="two_tenants_products", value=sum(done) / seconds, unit="1/s"),
        ],
        [f"Products of {side}×{side} in {seconds:g} s: {done[0]:g} and {done[1]:g}."],
    )


def _tenant(lease: Session, window: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benchmarks.remote_gpu.tenant", *window]
    return subprocess.Popen(command, env=os.environ | lease.environment(), stdout=subprocess.PIPE)


def _done(process: subprocess.Popen[bytes]) -> float:
    output, _ = process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"a tenant ended with {process.returncode}")
    return float(json.loads(output)["done"])
