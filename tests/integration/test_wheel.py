"""What people install: the wheel holds every file of its packages and works elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.embedded_cloud import cloud_in
from tests.installed import Installation, built_wheel, extras_of, install, packages

from .conftest import until

ROOT = Path(__file__).resolve().parents[2]
DEFINITION = """\
functions:
  aws:
  - lambda:
      name: one
      init_script: run.sh
      output: [{path: one-out/texts}]
    gpu: {memory: 64MiB, kinds: [cpu]}
    job: {input: {path: one-in/texts}}
"""
#: Two cores, shared with the rest of a test run.
DEMO_WITHIN_S = 110


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist"))


def test_the_wheel_holds_every_file_of_every_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    wanted = {
        str(Path(folder, file).relative_to(ROOT))
        for name in packages()
        for folder, _, files in os.walk(ROOT / name, followlinks=True)  # infra/ is in by a link
        for file in files
        if "__pycache__" not in folder and not file.startswith(".")
    }
    assert inside == wanted
    assert {
        "fdl/schema.json",
        "fdl/examples/sequence-search/database/proteins.fasta",
        "fdl/examples/text-recognition/input/sign.png",
        "remote_gpu/worker/spawner.py",
        "lambda_functions/gpu_runner/handler.py",
        "contract/keys.py",
        "local_cloud/py.typed",
    } <= inside


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """`pip install orchgpu`, without any extra."""
    return install(tmp_path_factory.mktemp("bare") / "venv", wheel)


def ran(program: str, *arguments: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """The command in an environment that names neither these sources nor anybody's AWS account."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and not k.startswith("AWS_")}
    return subprocess.run(
        [program, *arguments],
        cwd=cwd,
        env={**kept, **more},
        capture_output=True,
        text=True,
        timeout=DEMO_WITHIN_S,
    )


@contextmanager
def ssgmd(installation: Installation, folder: Path) -> Iterator[str]:
    """The address of an `ssgmd` of this installation; ended with the block."""
    ready = folder / "ssgmd.json"
    command = [installation.command("ssgmd"), "--state", str(folder / "state")]
    command += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file", str(ready)]
    process = subprocess.Popen(command, cwd=folder)
    try:
        until("ssgmd is ready", ready.exists)
        yield json.loads(ready.read_text())["socket"]
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize("name", ["orchgpu", "ssgm", "ssgmd", "ssgm-monitor", "gpud"])
def test_every_command_explains_itself_without_extras(
    bare: Installation, tmp_path: Path, name: str
) -> None:
    shown = ran(bare.command(name), "--help", cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")


def test_what_orchgpu_alone_installs_deploys_runs_and_asks(
    bare: Installation, tmp_path: Path
) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "fdl.yaml").write_text(DEFINITION)
    with cloud_in(tmp_path / "cloud") as cloud_address, ssgmd(bare, tmp_path) as address:
        cloud = {
            "AWS_ENDPOINT_URL": f"http://{cloud_address.netloc}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "ORCHGPU_SCHEDULER": address,
        }
        deploy = ("deploy", "fdl.yaml", "--allow-infeasible")  # no device is known yet
        deployed = ran(bare.command("orchgpu"), *deploy, cwd=tmp_path, **cloud)
        assert deployed.returncode == 0, deployed.stderr
        (tmp_path / "one.txt").write_text("one")
        started = ran(bare.command("orchgpu"), "run", "one", "one.txt", cwd=tmp_path, **cloud)
        assert started.returncode == 0, started.stderr
        jobs = ran(bare.command("orchgpu"), "jobs", "--json", cwd=tmp_path, **cloud)
        assert jobs.returncode == 0, jobs.stderr
        hosts = ran(bare.command("ssgm"), "hosts", "--json", cwd=tmp_path, **cloud)
        assert (hosts.returncode, json.loads(hosts.stdout)["hosts"]) == (0, []), hosts.stderr


@pytest.mark.parametrize(("cloud", "extra"), [("embedded", "local"), ("moto", "moto")])
def test_a_demo_without_its_extra_names_what_to_install(
    bare: Installation, tmp_path: Path, cloud: str, extra: str
) -> None:
    refused = ran(bare.command("orchgpu"), "demo", "--cloud", cloud, cwd=tmp_path)
    assert refused.returncode == 3
    assert f"pip install 'orchgpu[{extra}]'" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not list(tmp_path.glob(".orchgpu*"))


def test_the_screen_names_its_extra_where_it_is_missing(bare: Installation, tmp_path: Path) -> None:
    refused = ran(bare.command("orchgpu"), "top", cwd=tmp_path)
    assert refused.returncode == 3
    assert "pip install 'orchgpu[top]', or `make install` in a checkout" in refused.stderr


#: Extra → what has to be importable with it, and nothing of the other extras.
OFFERS = {
    "scheduler": "uvloop",
    "monitor": "pynvml gpu_scheduler.monitor.drivers.nvml",
    "host": "pynvml numpy onnxruntime operations.plugins.sequence_search rapidocr cv2",
    "operations": "numpy cryptography rapidocr cv2 pyopal",
    "postgres": "psycopg gpu_scheduler.daemon.log.engines.postgres",
    "opencl": "pyopencl remote_gpu.worker.backends.opencl",
    "cuda": "cuda.bindings.driver remote_gpu.worker.backends.cuda",
    "demo": "anycrc awslambdaric numpy uvloop local_cloud.server.application",
    "local": "anycrc awslambdaric numpy pyopencl uvloop local_cloud.server.application",
    "moto": "moto flask anycrc awslambdaric orchgpu.local.moto",
    "own": "psycopg orchgpu.adapters.own.queue",
    "otel": "corekit.tracing.opentelemetry",
    "simulate": "matplotlib simulator.workloads.plots",
    "top": "textual orchgpu.cli.top.app",
}


#: Gigabytes of libraries, and another ONNX Runtime than the lock's: `make gpu` tests them.
FOR_CARDS = ("host-cuda",)


def test_every_extra_is_tested(wheel: Path) -> None:
    assert set(extras_of(wheel)) == {*OFFERS, *FOR_CARDS}


@pytest.mark.parametrize("extra", OFFERS)
def test_an_extra_brings_what_its_role_imports(
    wheel: Path, bare: Installation, tmp_path: Path, extra: str
) -> None:
    installed = install(tmp_path / "venv", wheel, [extra], ours=bare)
    program = "; ".join(f"import {module}" for module in OFFERS[extra].split())
    found = ran(installed.python, "-W", "ignore", "-c", program, cwd=tmp_path)
    assert found.returncode == 0, found.stderr


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_the_demo_runs_from_the_wheel_away_from_the_sources(wheel: Path, tmp_path: Path) -> None:
    installed = install(tmp_path / "venv", wheel, ["local"])
    where = "import orchgpu, fdl; print(orchgpu.__file__, fdl.__file__)"
    found = ran(installed.python, "-c", where, cwd=tmp_path)
    assert str(ROOT) not in found.stdout
    demo = ran(installed.command("orchgpu"), "demo", "--json", cwd=tmp_path)
    assert demo.returncode == 0, demo.stderr
    shown = json.loads(demo.stdout)
    assert {job["state"] for job in shown["jobs"]} == {"SUCCEEDED"}
    assert shown["leases_left"] == shown["messages_left"] == shown["dead_letters"] == 0
