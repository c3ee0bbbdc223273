"""Each plugin's own tests, with its real tool in an environment of its own, on a running system.

The tools are not in our lock: they are installed from the package index, beside our own wheel.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.e2e.live import Live, live_system
from tests.installed import built_wheel
from tests.tidy.tracked import ROOT

UV = Path(sys.executable).with_name("uv")
FOLDER = ROOT / "integrations"
pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live_system(tmp_path_factory.mktemp("live")) as system:
        system.start_all()
        (system.path / "functions.py").write_text((FOLDER / "functions.py").read_text())
        system.orchgpu("deploy", "functions.py")
        yield system


def environment(folder: Path, *wanted: str | Path) -> str:
    """The Python of a new environment; skips where the index lacks a package."""
    python = folder / "venv/bin/python"
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, folder / "venv"], check=True)
    install = [UV, "pip", "install", "--quiet", "--python", python, *wanted]
    own = {**os.environ, "TMPDIR": str(folder)}  # uv leaves lock files there
    done = subprocess.run(install, capture_output=True, text=True, cwd=folder, env=own)
    if done.returncode:
        pytest.skip(f"cannot be installed here: {done.stderr.strip()[-600:]}")
    return str(python)


def passes(live: Live, python: str, folder: Path, arguments: Sequence[str]) -> None:
    variables = {k: v for k, v in live.environment.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [python, *arguments], env=variables, cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]


@pytest.mark.parametrize(
    "package", sorted(one.parent.name for one in FOLDER.glob("*/pyproject.toml"))
)
def test_a_plugin_with_its_tool(live: Live, wheel: Path, tmp_path: Path, package: str) -> None:
    source = tmp_path / package
    subprocess.run(["cp", "-r", FOLDER / package, source], check=True)  # builds write beside it
    python = environment(tmp_path, wheel, f"{source}[test]")
    options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", "."]
    passes(live, python, tmp_path, ["-m", "pytest", *options, str(source / "tests")])


def test_libraries_that_take_an_executor(live: Live, wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path, wheel, "adaptive>=1.3,<2", "dask>=2024.1")
    for name in ("functions.py", "consumers.py"):
        (tmp_path / name).write_text((FOLDER / name).read_text())
    passes(live, python, tmp_path, ["consumers.py"])
