"""The GPU check with small parts of its own: order, limits, resuming, pages, exit statuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import until

ROOT = Path(__file__).resolve().parents[3]
HEAD = """
from benchmarks.report import Figure
from tools.gpu_check.part import Answer, LeftOutError, Part, Target
PART = Part(title="A part", {declared})
def run(target: Target) -> Answer:
    {body}
"""
PASSES = (
    'return Answer([Figure(metric="m", value=2, unit="s", target="<= 1", met=False)], ["A note."])'
)
HANGS = """
    import subprocess, sys
    from pathlib import Path
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path({pid!r}).write_text(str(child.pid))
    child.wait()"""


class Check:
    """The check with the parts of one folder."""

    def __init__(self, folder: Path) -> None:
        self.parts, self.work, self.out = (folder / name for name in ("parts", "work", "out"))
        self.parts.mkdir()

    def part(self, name: str, body: str, **declared: Any) -> None:
        given = {"order": 1, "limit_s": 60, **declared}
        words = ", ".join(f"{key}={value!r}" for key, value in given.items())
        (self.parts / f"{name}.py").write_text(HEAD.format(declared=words, body=body))

    def started(self, *arguments: str) -> subprocess.Popen[str]:
        places = ("--parts", self.parts, "--work", self.work, "--out", self.out)
        command = [sys.executable, "-m", "tools.gpu_check", "--kind", "cpu", "--commit", "abc"]
        return subprocess.Popen(
            [*command, *map(str, places), *arguments],
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        """The exit status and the lines of progress."""
        process = self.started(*arguments)
        _, lines = process.communicate(timeout=120)
        return process.returncode, lines

    def results(self) -> dict[str, dict[str, Any]]:
        [path] = self.out.glob("*.json")
        return {one["name"]: one for one in json.loads(path.read_text())["parts"]}

    def page(self) -> str:
        [path] = self.out.glob("*.md")
        return path.read_text()


@pytest.fixture
def check(tmp_path: Path) -> Check:
    return Check(tmp_path)


def gone(pid: int) -> bool:
    """A zombie that its parent has not awaited yet is gone too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_parts_run_in_their_order_and_have_a_page(check: Check) -> None:
    check.part("first", PASSES, order=2)
    check.part("second", 'raise LeftOutError("no such device")', order=3)
    check.part("zeroth", PASSES, order=1)
    status, lines = check.run()
    assert status == 0, lines
    assert list(check.results()) == ["zeroth", "first", "second"]
    assert "[3/3] second: left out in" in lines
    page = check.page()
    assert "| first | passed |" in page
    assert "| 0 of 1 |" in page
    assert "| m | 2 s |  |  | <= 1 | no |" in page
    assert "A note." in page
    assert "| commit | abc |" in page
    assert "no such device" in page


def test_a_failure_is_a_result_and_the_others_run(check: Check) -> None:
    check.part("broken", 'raise ValueError("wrong | number")', order=1)
    check.part("dies", "import os; os._exit(9)", order=2)
    check.part("good", PASSES, order=3)
    status, lines = check.run()
    assert status == 1, lines
    found = check.results()
    assert [one["status"] for one in found.values()] == ["failed", "failed", "passed"]
    assert found["broken"]["why"] == "ValueError: wrong | number"
    assert "Traceback" in found["broken"]["log"]
    assert found["dies"]["why"] == "it ended with status 9"
    assert "wrong \\| number" in check.page()


def test_a_part_that_hangs_ends_at_its_limit_with_its_programs(
    check: Check, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    check.part("hangs", HANGS.format(pid=str(pid)), limit_s=5)
    check.part("next", PASSES, order=2)
    status, lines = check.run()
    assert status == 1, lines
    assert check.results()["hangs"]["why"] == "it ran past its limit of 5 s"
    assert check.results()["next"]["status"] == "passed"
    until("its program is gone", lambda: gone(int(pid.read_text())), within_s=20)


def test_missing_modules_are_named_and_other_kinds_left_out(check: Check) -> None:
    check.part("needs", PASSES, modules=("json", "no_such_module.at_all"))
    check.part("of_cards", PASSES, kinds=("cuda",))
    status, lines = check.run()
    assert status == 1, lines
    found = check.results()
    assert (found["needs"]["status"], found["needs"]["why"]) == (
        "not installed",
        "no_such_module.at_all",
    )
    assert found["of_cards"]["why"] == "for devices of kind cuda"


def test_a_run_resumes_with_what_is_left(check: Check) -> None:
    check.part("one", PASSES)
    check.part("two", 'raise ValueError("not yet")', order=2)
    assert check.run()[0] == 1
    check.part("two", PASSES, order=2)
    status, lines = check.run("--resume")
    assert status == 0, lines
    assert "one: passed, kept from an earlier run" in lines
    assert "two: passed in" in lines
    status, lines = check.run("--resume", "--commit", "def", "--only", "one")
    assert "one: passed in" in lines  # of another commit


def test_a_run_resumes_from_its_file(check: Check, tmp_path: Path) -> None:
    check.part("one", PASSES)
    assert check.run()[0] == 0
    [stored] = check.out.glob("*.json")
    elsewhere = tmp_path / "elsewhere"
    status, lines = check.run("--work", str(elsewhere), "--resume", str(stored))
    assert status == 0, lines
    assert "kept from an earlier run" in lines


def test_a_part_without_time_is_named(check: Check, tmp_path: Path) -> None:
    check.part("long", HANGS.format(pid=str(tmp_path / "pid")))
    check.part("late", PASSES, order=2)
    status, lines = check.run("--within", "5")
    assert status == 1, lines
    assert [one["status"] for one in check.results().values()] == ["no time", "no time"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_what_is_finished(
    check: Check, tmp_path: Path, number: int
) -> None:
    pid = tmp_path / "pid"
    check.part("one", PASSES)
    check.part("two", HANGS.format(pid=str(pid)), order=2)
    process = check.started()
    until("the second part runs", lambda: pid.exists() and pid.read_text() != "", within_s=60)
    os.kill(process.pid, number)
    _, lines = process.communicate(timeout=60)
    assert process.returncode == 130, lines
    assert list(check.results()) == ["one"]
    assert "The run was interrupted" in check.page()
    until("its program is gone", lambda: gone(int(pid.read_text())), within_s=20)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "nothing"), "unknown: nothing; parts are one"),
        (("--within", "0"), "more than 0 seconds"),
        (("--wheels", "/nonexistent"), "holds no wheel"),
        (("--resume", "/nonexistent"), "FileNotFoundError"),
    ],
)
def test_wrong_arguments(check: Check, arguments: tuple[str, ...], message: str) -> None:
    check.part("one", PASSES)
    status, lines = check.run(*arguments)
    assert (status, message in lines) == (2, True), lines


def test_a_declaration_that_is_not_literal(check: Check) -> None:
    (check.parts / "odd.py").write_text("PART = Part(title=str(1), order=1, limit_s=1)")
    status, lines = check.run()
    assert status == 2
    assert "odd.py: PART" in lines


def test_without_a_card_the_missing_things_are_named() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.gpu_check"], cwd=ROOT, capture_output=True, text=True
    )
    if "no NVIDIA GPU" not in done.stderr:
        pytest.skip("this machine has a card")
    assert done.returncode == 7
    assert "driver: " in done.stderr
    assert "device: " in done.stderr


def test_the_parts_are_listed_without_a_card() -> None:
    command = [sys.executable, "-m", "tools.gpu_check", "--dry-run"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in ("device", "gpu_tests", "end_to_end", "sharing", "revoke", "mps_mig"):
        assert f"{name}: " in done.stdout
    assert "at most 60 s" in done.stdout
