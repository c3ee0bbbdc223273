"""What people install: the wheel holds every file of its packages and works elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Two cores, shared with the rest of a test run.
DEMO_WITHIN_S = 110


def packages() -> list[str]:
    """The folders that the distribution is made of."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    return [pattern.removesuffix("*") for pattern in settings["packages"]["find"]["include"]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: nothing is written beside the sources."""
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for file in ("pyproject.toml", "README.md", "LICENSE", "DATA-LICENSES.md"):
        shutil.copy(ROOT / file, source)
    for name in packages():
        shutil.copytree(
            ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", ".*")
        )
    build = "from setuptools import build_meta; import sys; build_meta.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, str(made)], cwd=source, check=True, capture_output=True
    )
    (file,) = made.glob("*.whl")
    return file


def test_the_wheel_holds_every_file_of_every_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    wanted = {
        str(path.relative_to(ROOT))
        for name in packages()
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
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


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_the_demo_runs_from_the_wheel_away_from_the_sources(wheel: Path, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", "venv"], cwd=tmp_path, check=True
    )
    python = tmp_path / "venv/bin/python"
    (packages_of_venv,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    # the dependencies as they are; a path file is not followed twice: no editable install of ours
    (packages_of_venv / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    install = ["--python", str(python), "install", "--no-deps", "--no-index", "--quiet", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True, timeout=60)
    where = [str(python), "-c", "import orchgpu, fdl; print(orchgpu.__file__, fdl.__file__)"]
    found = subprocess.run(where, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert str(ROOT) not in found.stdout
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    demo = subprocess.run(
        [str(tmp_path / "venv/bin/orchgpu"), "demo", "--json"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEMO_WITHIN_S,
    )
    assert demo.returncode == 0, demo.stderr
    shown = json.loads(demo.stdout)
    assert {job["state"] for job in shown["jobs"]} == {"SUCCEEDED"}
    assert shown["leases_left"] == shown["messages_left"] == shown["dead_letters"] == 0
