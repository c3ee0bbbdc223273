"""The real client of Lupine, unmodified, through forwarder and gateway: it connects, or is refused.

What it then loads belongs to the server; see lupine_server.py for how far that goes here.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote_gpu.forwarder import Forwarder
from tests.integration.gpud.conftest import Gpud, running_gpud, until

EXAMPLE = Path(__file__).resolve().parents[3] / "fdl/examples/pytorch-lupine"
PROGRAM = """
import lupine, lupine._native
with lupine.connect():
    print(*sorted(lupine._native.loaded()))
"""


@pytest.fixture(scope="module")
def gpud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpud]:
    pytest.importorskip("lupine")
    folder = tmp_path_factory.mktemp("gpud")
    server = folder / "lupine_driver_server"
    source = Path(__file__).with_name("lupine_server.py").read_text()
    server.write_text(f"#!{sys.executable} -S\n{source}")
    server.chmod(0o755)
    with running_gpud(folder, middlewares={"lupine": server}) as found:
        yield found


def client(folder: Path, port: int) -> subprocess.CompletedProcess[str]:
    """The loader in a program of its own: what it loads stays loaded."""
    variables = {
        "LUPINE_SERVER": f"127.0.0.1:{port}",
        "LUPINE_CACHE_DIR": str(folder),
        "no_proxy": "*",
    }
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_real_client_connects_and_is_refused_after_the_lease(
    gpud: Gpud, tmp_path: Path
) -> None:
    install = gpud.install()
    session = gpud.open(install)
    with Forwarder(session.view(), "lupine") as forwarder:
        done = client(tmp_path / "first", forwarder.ports[0])
        assert done.returncode == 0, done.stderr
        assert done.stdout == "libcuda.so.1 libnvidia-ml.so.1\n"
        gpud.scheduler.end(install)
        until(lambda: gpud.scheduler.is_cut(install.lease))
        late = client(tmp_path / "late", forwarder.ports[0])
        assert late.returncode != 0
        assert "LupineError: Could not resolve the server's LUPINE client" in late.stderr
    session.close()


def test_the_real_client_is_refused_without_the_secret(gpud: Gpud, tmp_path: Path) -> None:
    install = gpud.install()
    with gpud.open(install) as session:
        view = session.view()
        forged = tuple(dataclasses.replace(host, secret="ab" * 32) for host in view.hosts)
        with Forwarder(dataclasses.replace(view, hosts=forged), "lupine") as forwarder:
            done = client(tmp_path, forwarder.ports[0])
    assert done.returncode != 0
    assert "LupineError" in done.stderr


#: In place of PyTorch, which needs a card: the same environment, and the client that it would load.
SCRIPT = """#!/usr/bin/env python3
import os, lupine, lupine._native
with lupine.connect():
    print(os.environ["LUPINE_DISABLE_LOCAL"], *sorted(lupine._native.loaded()))
print(os.environ["LUPINE_SERVER"].rpartition(":")[0])
"""


def test_the_example_of_pytorch_reaches_the_server_with_what_its_package_holds(
    gpud: Gpud, tmp_path: Path
) -> None:
    package = tmp_path / "task"
    packing = [sys.executable, "-m", "orchgpu", "package", str(EXAMPLE / "fdl.yaml")]
    subprocess.run([*packing, "--out", str(package)], check=True, capture_output=True, timeout=60)
    assert (package / "script/fit.py").read_text() == (EXAMPLE / "fit.py").read_text()
    compile((package / "script/fit.py").read_text(), "fit.py", "exec")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    install = gpud.install()
    variables = {"LUPINE_SERVER": "127.0.0.1:{0}", "LUPINE_DISABLE_LOCAL": "1"}
    envelope = {"middleware": "lupine", "variables": variables}
    envelope["connection"] = gpud.connection(install)
    (tmp_path / "env.json").write_text(json.dumps(envelope))
    command = ["-m", "remote_gpu.forwarder", str(tmp_path / "env.json"), sys.executable]
    done = subprocess.run(
        [sys.executable, "-P", *command, str(script)],
        env={**os.environ, "PYTHONPATH": str(package), "no_proxy": "*"}
        | {"LUPINE_CACHE_DIR": str(tmp_path / "cache")},
        cwd=package,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 libcuda.so.1 libnvidia-ml.so.1\n127.0.0.1\n"
    until(lambda: gpud.scheduler.is_cut(install.lease))
