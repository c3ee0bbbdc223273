"""`tools/install.py` and the lock files that it reads."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
ALL, DEMO = "requirements.lock", "requirements-demo.lock"


def _entries(name: str) -> dict[str, str]:
    """Package → its version and hashes; markers differ with what else is locked."""
    entries = re.split(r"\n(?=\S)", (ROOT / name).read_text().strip())
    return {entry.partition("==")[0]: re.sub(r" ; .*", " \\\\", entry) for entry in entries}


def test_the_demo_is_locked_to_the_same_packages_as_the_tests() -> None:
    everything, demo = _entries(ALL), _entries(DEMO)
    assert demo.items() <= everything.items(), "run make lock"
    assert "uv" in demo, "tools/install.py installs by it"
    assert "setuptools" in demo, "the editable package is built with it"
    assert {"pyopencl", "playwright", "moto", "mypy"}.isdisjoint(demo)


def test_the_demo_has_each_package_that_its_extra_names() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    waiting, found = ["demo", "install"], set[str]()
    while waiting:
        for wanted in map(Requirement, extras[waiting.pop()]):
            waiting += wanted.extras if wanted.name == "orchgpu" else ()
            found |= {wanted.name.lower()} - {"orchgpu"}
    assert found <= _entries(DEMO).keys(), "run make lock"


@pytest.mark.parametrize("arguments", [(), ("nothing.lock",)])
def test_wrong_arguments_end_with_2_and_the_usage(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, str(ROOT / "tools/install.py"), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert (ran.returncode, "tools/install.py requirements-demo.lock" in ran.stderr) == (2, True)
