"""The parts of the GPU check on this machine's CPU, and the wheels that travel with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.drivers import needs_cpu_driver
from tools.gpu_check.machine import machine_of
from tools.gpu_check.page import cell
from tools.gpu_check.part import parts_in
from tools.gpu_check.parts.gpu_tests import paths_with_mark, run_marked
from tools.gpu_check.parts.mps_mig import mps_state
from tools.gpu_check.wheels import LOCK, chosen, locked, names_in

ROOT = Path(__file__).resolve().parents[3]
HERE = [name for name, part in parts_in().items() if "cpu" in part.kinds]
ONE_TEST = """
import pytest
@pytest.mark.{mark}
def test_one() -> None:
    {body}
@pytest.mark.{mark}
@pytest.mark.skip(reason="no such card")
def test_two() -> None:
    pass
def test_not_marked() -> None:
    raise AssertionError
"""


RUNS = [*(("cpu", name) for name in HERE), ("opencl", "device"), ("opencl", "end_to_end")]
#: The others repeat what tests of their own show, on this machine's CPU.
ALWAYS = {("cpu", "device"), ("cpu", "end_to_end"), ("cpu", "revoke")}


@needs_cpu_driver
@pytest.mark.parametrize(
    ("kind", "name"),
    [pytest.param(*run, marks=[] if run in ALWAYS else pytest.mark.soak) for run in RUNS],
)
def test_every_part_runs_without_a_card(tmp_path: Path, kind: str, name: str) -> None:
    command = [sys.executable, "-m", "tools.gpu_check", "--kind", kind, "--quick"]
    command += ["--out", str(tmp_path), "--work", str(tmp_path / "work"), "--only", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    [stored] = tmp_path.glob("*.json")
    [part] = json.loads(stored.read_text())["parts"]
    assert (part["name"], part["status"]) == (name, "passed")
    assert part["figures"]


def test_marked_tests_are_counted(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(ONE_TEST.format(body="pass", mark="gpu"))
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "test_other.py").write_text("def test_other(): pass\n")
    paths = paths_with_mark(tmp_path, "gpu")
    assert paths == [tmp_path / "test_it.py"]
    answer = run_marked(paths, "gpu", tmp_path / "report.xml")
    assert [figure.value for figure in answer.figures] == [1, 1]
    assert answer.notes == ["Skipped: no such card."]


def test_failed_tests_fail_the_part(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(ONE_TEST.format(body="assert False", mark="gpu"))
    with pytest.raises(RuntimeError, match=r"0 passed, 1 failed, 1 skipped.*test_one"):
        run_marked([tmp_path / "test_it.py"], "gpu", tmp_path / "report.xml")


def test_the_project_has_marked_tests() -> None:
    assert ROOT / "tests" / "unit" / "operations" in paths_with_mark(ROOT / "tests", "gpu")


def test_the_control_daemon_of_mps_is_seen_by_its_pipe(tmp_path: Path) -> None:
    assert "no control daemon" in mps_state(tmp_path)
    (tmp_path / "control").touch()
    assert str(tmp_path) in mps_state(tmp_path)


def test_cells_are_short_and_in_one_line() -> None:
    assert cell("a|b\nc") == "a\\|b c"
    assert len(cell("x" * 500)) == 160


def test_machines_are_stored() -> None:
    stored = {"cards": [{"name": "A", "memory_mib": 1, "capability": "9.0"}], "driver": "580.1"}
    assert machine_of(stored).cards[0].capability == "9.0"


def test_lists_of_packages_are_read() -> None:
    text = (
        "Package Version\n------- ---\nnumpy 2.5\nPyYAML==6.0\n# comment\nruamel.yaml @ file://x\n"
    )
    assert names_in(text) >= {"numpy", "pyyaml", "ruamel-yaml"}


LOCKED = """\
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:aa
numpy==2.5.5 ; python_full_version >= '3.12' \\
    --hash=sha256:bb \\
    --hash=sha256:cc
colorama==0.4 ; sys_platform == 'win32' \\
    --hash=sha256:dd
pytest_asyncio==1.5.0 \\
    --hash=sha256:ee
"""


def test_pins_are_those_of_the_other_python() -> None:
    assert list(locked(LOCKED, "3.12")) == [
        ("numpy", "numpy==2.5.5 --hash=sha256:bb --hash=sha256:cc"),
        ("pytest-asyncio", "pytest_asyncio==1.5.0 --hash=sha256:ee"),
    ]
    assert [pin.split()[0] for pin in chosen(LOCKED, "3.11", {"pytest-asyncio"})] == [
        "numpy==2.4.6"
    ]


def test_all_that_the_parts_need_is_locked() -> None:
    have: set[str] = set()
    pins = chosen(LOCK.read_text(), "3.12", have)
    assert {"msgspec", "cryptography", "pyopal"} <= {pin.partition("==")[0] for pin in pins}
    assert all("--hash=sha256:" in pin for pin in pins)
