"""`benchmarks.remote_gpu.card`: own kernels, libraries and copies on the device."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.report import ROOT, Figure
from tools.gpu_check.first_device import device_id
from tools.gpu_check.part import Answer, Part, Target

PART = Part(
    title="`benchmarks.remote_gpu.card`: sequence search, products, copies, AES",
    order=80,
    limit_s=150,
    modules=("numpy", "msgspec", "cryptography", "pyopal", "scoring_matrices"),
)


def run(target: Target) -> Answer:
    command = [sys.executable, "-m", "benchmarks.remote_gpu.card", "--kind", target.kind, "--json"]
    command += ["--device", device_id(target.kind)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    results = json.loads(done.stdout.splitlines()[-1])["results"]
    return Answer([Figure(**figure) for figure in results])
