"""`python3 -m remote_gpu.host.runs.in_batch`: a container of AWS Batch, which becomes a runner.

It reads its order in the variable `ORCHGPU_RUN`, gets the function's package, and has the package's
own `lambda_functions.gpu_runner.on_host` in its place. The container is the isolation: the runner
and the user's code have the credentials of the job's role, as in Lambda. Statuses beside the
runner's: 2, the order is not one; `launch.UNPACKED_STATUS`.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import time
import uuid
from pathlib import Path

from corekit.errors import AppError
from remote_gpu.host.runs.launch import become_runner, fail, fetched, owners_of
from remote_gpu.host.runs.package import unpacked
from remote_gpu.wire.errors import WireError
from remote_gpu.wire.runs import BATCH_VARIABLE, BatchOrder

#: The folder of unpacked packages, where the container has more runs than one (`in_service`).
PACKAGES_VARIABLE = "ORCHGPU_PACKAGES"
_NO_ORDER = 2
#: The job's id, which names the claim of its attempt.
_JOB_ID = "AWS_BATCH_JOB_ID"


def main() -> None:
    """Become the runner. Never returns."""
    began_s = time.monotonic()
    try:
        order = BatchOrder.from_json(os.environ.pop(BATCH_VARIABLE, ""))
    except WireError as error:
        fail(f"{BATCH_VARIABLE} is not the order of a run: {error}", _NO_ORDER)
    request = os.environ.get(_JOB_ID) or str(uuid.uuid4())
    _name(order, request)
    tmp = Path(tempfile.mkdtemp(prefix="orchgpu-"))
    packages = Path(os.environ.pop(PACKAGES_VARIABLE, "") or tmp / "package")
    packages.mkdir(exist_ok=True)
    fetch = functools.partial(fetched, owners_of(order.variables))
    try:
        package = unpacked(order.package, packages, tmp, fetch)
    except AppError as error:
        fail(error.message)
    except (OSError, ValueError) as error:
        fail(f"the package cannot be unpacked: {error}")
    runner = {
        "event": order.event,
        "environment": {**order.variables, "LAMBDA_TASK_ROOT": str(package)},
        "confine": [],
        "request": request,
        "function": order.function,
        "memory_mib": order.memory_mib,
        "ends_at_s": began_s + order.timeout_s,
    }
    own = {"PYTHONPATH": str(package), "PYTHONUNBUFFERED": "1", "HOME": str(tmp)}
    become_runner(runner, {**os.environ, **own})


def _name(order: BatchOrder, request: str) -> None:
    """The runner's first lines, by which `orchgpu logs` finds what a job wrote before them."""
    at = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
    sys.stdout.write(f"START RequestId: {request} Version: $BATCH\n")
    sys.stdout.write(f"[INFO]\t{at}\t{request}\t{order.job}, attempt {order.attempt}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
