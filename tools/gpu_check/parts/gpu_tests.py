"""The tests that are marked `gpu`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.report import ROOT, Figure
from tools.gpu_check.part import Answer, Part, Target

PART = Part(
    title="The tests that are marked `gpu`",
    order=20,
    limit_s=240,
    kinds=("cuda",),
    modules=(
        "pytest",
        "pytest_asyncio",
        "pytest_timeout",
        "hypothesis",
        "numpy",
        "msgspec",
        "cryptography",
        "pyopal",
        "onnxruntime",
        "cuda.bindings",
    ),
)


def run(target: Target) -> Answer:
    return run_marked(paths_with_mark(ROOT / "tests", "gpu"), "gpu", target.folder / "junit.xml")


def paths_with_mark(folder: Path, mark: str) -> list[Path]:
    """Test files that use a mark; the whole folder of a conftest.py that does."""
    return [
        path.parent if path.name == "conftest.py" else path
        for path in sorted(folder.rglob("*.py"))
        if f"mark.{mark}" in path.read_text(encoding="utf-8")
    ]


def run_marked(paths: list[Path], mark: str, report: Path) -> Answer:
    """Run the marked tests. Raises RuntimeError when one failed, or none passed."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", mark, f"--junitxml={report}"]
    command += ["-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider", *map(str, paths)]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    bad = [_name(case) for case in cases if _has(case, "failure") or _has(case, "error")]
    skipped = [case for case in cases if _has(case, "skipped")]
    passed = len(cases) - len(bad) - len(skipped)
    if bad or status not in (0, 5) or not passed:
        raise RuntimeError(
            f"{passed} passed, {len(bad)} failed, {len(skipped)} skipped; pytest ended with"
            f" {status}: {', '.join(bad[:5])}"
        )
    reasons = sorted({_reason(case) for case in skipped})
    return Answer(
        [
            Figure(metric="tests_passed", value=passed, unit="tests"),
            Figure(metric="tests_skipped", value=len(skipped), unit="tests"),
        ],
        [f"Skipped: {reason}." for reason in reasons],
    )


def _has(case: ElementTree.Element, name: str) -> bool:
    return case.find(name) is not None


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('classname')}::{case.get('name')}"


def _reason(case: ElementTree.Element) -> str:
    found = case.find("skipped")
    return (found.get("message") or "no reason") if found is not None else ""
