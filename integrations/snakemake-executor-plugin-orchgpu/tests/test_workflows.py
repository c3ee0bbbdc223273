"""Snakemake's own suite for executors, and workflows whose rules are jobs of functions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from snakemake.common.tests import TestWorkflowsLocalStorageBase


class TestOwnSuite(TestWorkflowsLocalStorageBase):
    """Rules without a function: a whole workflow, and groups."""

    __test__ = True

    def get_executor(self) -> str:
        return "orchgpu"

    def get_executor_settings(self) -> None:
        return None


WORKFLOW = """
rule all:
    input: "all.txt"

rule shout:
    input: "in/{n}/text.txt"
    output: "out/{n}.loud"
    log: "logs/{n}.txt"
    resources: orchgpu_function="shout"
    shell: "exit 1"

rule gather:
    input: expand("out/{n}.loud", n=range(20))
    output: "all.txt"
    shell: "cat {input} > {output}"
"""


def snakemake(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "Snakefile").write_text(text)
    command = [sys.executable, "-m", "snakemake", "--executor", "orchgpu", "--jobs", "20", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=400)


def test_twenty_files_through_a_function(tmp_path: Path) -> None:
    for n in range(20):  # of the same name, in folders of their own
        (tmp_path / f"in/{n}").mkdir(parents=True)
        (tmp_path / f"in/{n}/text.txt").write_text(f"text {n}\n")
    done = snakemake(tmp_path, WORKFLOW)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "all.txt").read_text().splitlines()
    assert lines == [f"TEXT {n}" for n in range(20)]
    assert "shouted" in (tmp_path / "logs/7.txt").read_text()
    again = snakemake(tmp_path, WORKFLOW)
    assert "Nothing to be done" in again.stderr


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ('input: "a.txt"', "the text asks for it"),
        ('input: "a.txt", "b.txt"', "a job has one input file, the rule has 2"),
    ],
)
def test_a_failure_is_the_failure_of_its_rule(tmp_path: Path, rule: str, reason: str) -> None:
    (tmp_path / "a.txt").write_text("fail")
    (tmp_path / "b.txt").write_text("b")
    text = f'rule shout:\n    {rule}\n    output: "a.loud"\n'
    text += '    resources: orchgpu_function="shout"\n    shell: "exit 1"\n'
    done = snakemake(tmp_path, text)
    assert done.returncode == 1
    assert reason in done.stderr
    assert not (tmp_path / "a.loud").exists()
