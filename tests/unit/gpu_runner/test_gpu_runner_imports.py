"""The modules that a cold start loads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
#: boto3 brings these.
BOTO = {"boto3", "botocore", "s3transfer", "jmespath", "dateutil", "urllib3", "six", "certifi"}
OURS = {"lambda_functions", "contract", "remote_gpu"}
CODE = """
import json, sys
import lambda_functions.gpu_runner.handler
print(json.dumps(sorted(sys.modules)))
"""


def loaded() -> list[str]:
    environment = {
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "PATH": os.environ["PATH"],
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CODE],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


def test_only_the_standard_library_boto_and_ours() -> None:
    modules = loaded()
    tops = {name.partition(".")[0] for name in modules}
    tops = {top for top in tops if not top.startswith(("__", "_distutils_hack", "_virtualenv"))}
    assert tops <= set(sys.stdlib_module_names) | BOTO | OURS
    assert not tops & {"aiohttp", "asyncio", "yaml", "numpy", "corekit", "orchgpu", "fdl"}
    ours = {name for name in modules if name.startswith("remote_gpu.")}
    allowed = ("remote_gpu.client", "remote_gpu.wire", "remote_gpu.forwarder")
    assert all(name.startswith(allowed) for name in ours)
