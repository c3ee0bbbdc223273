"""Options of gpud, and refusals before any process is started."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from corekit.errors import EXIT_STATUS, AppError, ErrorCode
from gpu_scheduler.daemon.access.iam_rules import IamRules
from gpu_scheduler.model import DeviceKind, Share
from gpu_scheduler.protocol.keys import new_key
from remote_gpu.host.app import _log, advertised
from remote_gpu.host.cli import _address, _use_mps, main
from remote_gpu.host.credentials.iam import RoleProof
from remote_gpu.host.environment import MPS_DIRECTORY, worker_variables
from remote_gpu.worker.control import VARIABLES
from tests.installs import share_of
from tests.sts import ROLE_ARN

USUAL = ("--host-id", "h", "--scheduler", "127.0.0.1:1", "--state", "/nonexistent/state")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A program sets up the logging of its process; this one goes on."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize(
    ("advertise", "bound", "public"),
    [
        ("127.0.0.1:0", "127.0.0.1:4711", "127.0.0.1:4711"),
        ("gpu-a.example:0", "0.0.0.0:4711", "gpu-a.example:4711"),
        ("gpu-a.example:443", "0.0.0.0:4711", "gpu-a.example:443"),
        ("[2001:db8::1]:0", "[::]:4711", "[2001:db8::1]:4711"),
    ],
)
def test_the_advertised_address(advertise: str, bound: str, public: str) -> None:
    assert advertised(_address("--advertise", advertise), bound) == public


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--listen", "0.0.0.0:0"), "give --advertise ADDRESS:PORT"),
        (("--listen", "[::]:0"), "give --advertise ADDRESS:PORT"),
        (("--advertise", "here"), "--advertise: 'here' is not an address"),
        (("--listen", "127.0.0.1:99999"), "--listen: '127.0.0.1:99999'"),
        (("--listen", "nowhere"), "--listen: 'nowhere' is not an address"),
        (("--data", "x=/does/not/exist"), "--data x: /does/not/exist does not exist"),
        (("--scheduler", "nowhere"), "'nowhere' is not an address"),
        (("--key-file", "/nonexistent/key"), "cannot read the key file"),
        (("--tls-cert", "c.pem"), "--tls-cert and --tls-key go together"),
        (("--require-tls",), "--require-tls needs --tls-cert and --tls-key"),
        (("--tls-cert", "/nowhere.pem", "--tls-key", "/nowhere.pem"), "No such file"),
        (("--join-iam", "prod"), "--join-iam needs a region: set AWS_REGION"),
        (("--operation", "sgem"), "--operation 'sgem' is unknown; did you mean 'sgemm'?"),
        (("--operation", "???"), "--operation '???' is unknown; known are aes_cbc, arrays, burn"),
        (("--program", "count"), "--program 'count' is not NAME=COMMAND"),
        (("--program", "x=wc -c"), "--program x: 'wc -c' does not begin with the absolute path"),
        (("--program", "x=/etc/passwd"), "--program x: /etc/passwd is not an executable file"),
        (("--program", "x=/bin/sh '"), "--program x: "),
        (("--program", "function-runner=/bin/sh"), "this name is that of a host's own program"),
        (("--program", "x=/bin/sh", "--program", "x=/bin/sh"), "given twice"),
        (("--emulate", "/nonexistent.yaml"), "--emulate: cannot read /nonexistent.yaml"),
        (
            ("--emulate", "/nonexistent.yaml", "--opencl", "all"),
            "--emulate and --opencl exclude each other",
        ),
        (
            ("--emulate", "/nonexistent.yaml", "--middleware", "pocl=/bin/true"),
            "--emulate and --middleware exclude each other",
        ),
        (("--middleware", "builtin=/bin/true"), "'builtin' is unknown; known are cricket, gvirtus"),
        (("--middleware", "lupine"), "'lupine' is not NAME=PROGRAM"),
        (("--middleware", "lupine=true"), "'true' is not the absolute path of a program"),
        (("--middleware", "lupine=/etc/passwd"), "is not the absolute path of a program"),
        (("--middleware", "pocl=/bin/true", "--middleware", "pocl=/bin/true"), "given twice"),
    ],
)
def test_refused_before_anything_is_started(options: tuple[str, ...], named: str) -> None:
    done = CliRunner().invoke(main, [*USUAL, *options])
    assert done.exit_code == EXIT_STATUS[ErrorCode.INVALID]
    assert done.output.startswith("gpud: ")
    assert named in done.output


def test_a_state_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AppError, match=r"cannot use .*file/state as the state folder") as caught:
        _log(tmp_path / "file" / "state")
    assert caught.value.code is ErrorCode.INVALID


def test_mps_needs_its_control_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MPS_DIRECTORY, "")
    missing = CliRunner().invoke(main, [*USUAL, "--mps", str(tmp_path)])
    assert missing.exit_code == EXIT_STATUS[ErrorCode.INVALID]
    assert "no MPS control daemon listens" in missing.output
    (tmp_path / "control").touch()
    _use_mps(tmp_path)
    assert os.environ[MPS_DIRECTORY] == str(tmp_path)


def share(device: str, kind: DeviceKind, *, exclusive: bool = False) -> Share:
    part = {"memory_mib": 2048, "compute_limit_pct": 40, "exclusive": exclusive}
    return share_of(device, index=3, kind=kind, **part)


@pytest.mark.parametrize(
    ("shares", "added"),
    [
        ((share("h/cpu0", DeviceKind.CPU),), {"CUDA_VISIBLE_DEVICES": ""}),
        (
            (share("GPU-1", DeviceKind.CUDA), share("MIG-2", DeviceKind.CUDA)),
            {
                "CUDA_VISIBLE_DEVICES": "GPU-1,MIG-2",
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2048M,1=2048M",
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40",
            },
        ),
        ((share("GPU-1", DeviceKind.CUDA, exclusive=True),), {"CUDA_VISIBLE_DEVICES": "GPU-1"}),
    ],
)
def test_variables_of_nvidia_devices_for_workers(
    shares: tuple[Share, ...], added: dict[str, str]
) -> None:
    assert worker_variables(shares) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} | added
    assert worker_variables(shares).keys() <= VARIABLES


def test_a_host_joins_by_a_key_or_by_its_role(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("ORCHGPU_SCHEDULER_KEY", new_key("gpu-a"))
    done = CliRunner().invoke(main, [*USUAL, "--join-iam", "prod"])
    assert done.exit_code == 2
    assert "--join-iam and a key of the scheduler exclude each other" in done.output


def test_a_proof_needs_credentials() -> None:
    with pytest.raises(AppError, match="no AWS credentials were found"):
        asyncio.run(RoleProof("eu-central-1").url("prod", "nonce"))


@pytest.mark.parametrize(
    ("region", "host"),
    [
        ("eu-central-1", "sts.eu-central-1.amazonaws.com"),
        ("cn-north-1", "sts.cn-north-1.amazonaws.com.cn"),
    ],
)
def test_the_proof_is_for_the_endpoint_of_the_region(
    region: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    url = asyncio.run(RoleProof(region).url("prod", "nonce"))
    rules = IamRules.read(
        {"server": "prod", "sts": [f"https://{host}"], "role": [{"arn": ROLE_ARN}]}, "roles"
    )
    rules.check_url(url)
    assert "secret" not in url
