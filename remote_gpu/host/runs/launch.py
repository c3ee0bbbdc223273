"""`python -P -m remote_gpu.host.runs.launch`: the process of one run, which becomes its runner.

It reads its `RunStart` on the standard input, isolates itself, gets the package as the lease's
user, and then has the package's own `lambda_functions.gpu_runner.on_host` in its place. Statuses
beside the runner's: `UNPACKED_STATUS`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from corekit.errors import AppError
from corekit.values import Value
from remote_gpu.host.runs.package import unpacked
from remote_gpu.isolation import run
from remote_gpu.isolation.apply import Sandbox
from remote_gpu.isolation.policy import IsolationPolicy
from remote_gpu.wire.runs import Package

#: The package cannot be had: it is gone, unreadable, or not what its order names.
UNPACKED_STATUS = 3


class RunStart(Value):
    """One run, as gpud hands it to the process; no secret is in it."""

    parent: int  #: gpud
    policy: IsolationPolicy
    sandbox: Sandbox
    reach: run.RunReach
    package: Package
    aws: dict[str, str]  #: AWS's variables: where the credentials lie, region, endpoints
    runner: dict[str, Any]  #: for `on_host`
    data: dict[str, str] = {}  #: declared data sets: name → path
    container: str = ""  #: folder that the run shares with its container; "" = it has none

    def to_json(self) -> bytes:
        return msgspec.json.encode(self, enc_hook=str)

    @classmethod
    def from_json(cls, text: bytes) -> RunStart:
        """Raises msgspec's errors."""
        return msgspec.json.decode(text, type=cls, dec_hook=lambda kind, given: kind(given))


def main() -> None:
    """Become the runner. Never returns."""
    start = RunStart.from_json(sys.stdin.buffer.read())
    policy, sandbox, reach = start.policy, start.sandbox, start.reach
    folder = Path(sandbox.folder)
    tmp = folder / run.TMP_NAME
    run.enter(policy, sandbox, reach, start.parent)
    shared = [Path(start.container)] if start.container else []
    _link(start.data, folder / run.DATA_NAME)
    run.restrict(policy, sandbox, reach, folder, reach.packages, *shared, package=None)
    run.filter_calls(policy, sandbox)
    os.chdir(tmp)
    os.environ.update(start.aws)
    try:
        fetch = functools.partial(fetched, owners_of(start.runner["environment"]))
        package = unpacked(start.package, reach.packages, tmp, fetch)
    except AppError as error:
        fail(error.message)
    except (OSError, ValueError) as error:
        fail(f"the package cannot be unpacked: {error}")
    run.restrict(policy, sandbox, reach, folder, *shared, package=package)
    confining = [] if shared else run.confining(policy, sandbox, reach, package)
    _become_runner(start, package, shared[0] if shared else tmp, confining)


def _link(data: dict[str, str], folder: Path) -> None:
    """Make the folder of DATA_DIR."""
    folder.mkdir()
    for name, path in data.items():
        (folder / name).symlink_to(path)


def owners_of(variables: Mapping[str, str]) -> Callable[[str], str | None]:
    """The account that must own a bucket, by the runner's own variables; None = not known."""
    account = variables.get("ORCHGPU_ACCOUNT") or None
    others: dict[str, str] = json.loads(variables.get("ORCHGPU_BUCKET_OWNERS") or "{}")
    return lambda bucket: others.get(bucket, account)


def fetched(owner_of: Callable[[str], str | None], package: Package, target: Path) -> None:
    """Download with the function's credentials, from the account that deployed. Ends the process
    where the package cannot be read."""
    # a second to load, and most runs find their package unpacked
    from botocore.exceptions import BotoCoreError, ClientError

    owner = owner_of(package.bucket)
    owned = {"ExpectedBucketOwner": owner} if owner else {}
    where = f"s3://{package.bucket}/{package.key}"
    try:
        with contextlib.closing(store_client()) as s3:
            body = s3.get_object(Bucket=package.bucket, Key=package.key, **owned)["Body"]
            with target.open("wb") as file:
                for chunk in body.iter_chunks(1 << 20):
                    file.write(chunk)
    except (BotoCoreError, ClientError) as error:
        fail(f"{where} cannot be read: {error}")


def store_client() -> Any:
    """A client of the store, by the variables of every S3 client. Raises BotoCoreError."""
    import boto3
    from botocore.config import Config

    emulated = "AWS_ENDPOINT_URL" in os.environ or "AWS_ENDPOINT_URL_S3" in os.environ
    style = {"addressing_style": "path" if emulated else "auto"}
    return boto3.client("s3", config=Config(s3=style))


def _become_runner(start: RunStart, package: Path, tmp: Path, confining: list[str]) -> None:
    folder = Path(start.sandbox.folder) / run.DATA_NAME
    runner = {
        **start.runner,
        "confine": confining,
        "environment": {
            **start.runner["environment"],
            **start.aws,
            "LAMBDA_TASK_ROOT": str(package),
            "TMPDIR": str(tmp),
            "HOME": str(tmp),
            **({"DATA_DIR": str(folder)} if start.data else {}),
        },
    }
    names = ("PATH", "LANG", "TZ", "LD_LIBRARY_PATH")
    environment = {name: os.environ[name] for name in names if name in os.environ} | {
        "PYTHONPATH": str(package),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(tmp),
        "HOME": str(tmp),
    }
    become_runner(runner, environment)


def become_runner(runner: Mapping[str, Any], environment: Mapping[str, str]) -> NoReturn:
    """Have the package's runner, by PYTHONPATH, in the place of this process. Never returns."""
    given = os.memfd_create("order")
    os.write(given, json.dumps(runner).encode())
    os.lseek(given, 0, os.SEEK_SET)
    os.dup2(given, 0)
    os.close(given)
    command = [sys.executable, "-P", "-m", "lambda_functions.gpu_runner.on_host"]
    os.execve(command[0], command, dict(environment))  # noqa: S606 - no shell is wanted


def fail(text: str, status: int = UNPACKED_STATUS) -> NoReturn:
    """End this process, which got no package or order to run."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
