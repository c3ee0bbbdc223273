"""Style rules as a test: what reviewers should not have to say."""

from __future__ import annotations

import ast
import re
import statistics
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.tidy.tracked import ROOT, outside, tracked

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
#: It travels inside every package; runs and parameters are 120 of them, files of values 45,
#: jobs of HTTP requests 60.
CONTRACT_CODE_LINES_MAX = 500
BANNED_NAMES = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py"}
#: Calls a linter for imports cannot see; in a core they would make a replay differ.
IMPURE_CALLS = {"now", "utcnow", "today", "uuid4", "uuid1", "urandom", "token_hex", "getenv"}
CORES = ("gpu_scheduler/core", "orchgpu/core", "local_cloud/model", "fdl")


SOURCES = [p for p in tracked("*.py") if outside(p, "fdl/examples/")]
PRODUCT = [p for p in SOURCES if outside(p, "tests/")]


@dataclass(frozen=True)
class Parsed:
    """All that the tests ask of a file's syntax: it is parsed once."""

    functions: tuple[tuple[str, int], ...]  #: each by its place and name, with its lines
    documented: bool
    faults_of_cores: tuple[str, ...]


@cache
def parsed(path: Path) -> Parsed:
    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree))
    return Parsed(
        functions=tuple(
            (f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", end - node.lineno + 1)
            for node in nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and (end := node.end_lineno) is not None
        ),
        documented=ast.get_docstring(tree) is not None,
        faults_of_cores=tuple(_faults_of_cores(path.name, nodes)),
    )


def _faults_of_cores(name: str, nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if _is_call_of(node, IMPURE_CALLS):
            assert isinstance(node, ast.Call)
            yield f"{name}:{node.lineno} calls what a replay cannot repeat"
        if isinstance(node, ast.For | ast.comprehension) and _is_set(node.iter):
            yield f"{name}:{node.iter.lineno} iterates over a set"


def test_files_stay_short() -> None:
    long = {
        str(p.relative_to(ROOT)): n
        for p in SOURCES
        if (n := p.read_text().count("\n")) > FILE_LINES_MAX
    }
    assert not long


def test_functions_stay_short() -> None:
    long = [
        f"{name}: {lines}"
        for path in SOURCES
        for name, lines in parsed(path).functions
        if lines > FUNCTION_LINES_MAX
    ]
    assert not long


def test_most_functions_are_small() -> None:
    lengths = [lines for path in PRODUCT for _, lines in parsed(path).functions]
    assert statistics.median(lengths) <= 12
    assert sum(n <= 20 for n in lengths) / len(lengths) >= 0.75


def test_the_contract_stays_small() -> None:
    code = [line for path in sorted((ROOT / "contract").glob("*.py")) for line in _code_lines(path)]
    assert len(code) <= CONTRACT_CODE_LINES_MAX


def _code_lines(path: Path) -> list[str]:
    """Lines that hold code: no blanks, comments or docstrings."""
    tree = ast.parse(path.read_text())
    documented = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and ast.get_docstring(node) is not None
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    return [
        text
        for number, text in enumerate(path.read_text().splitlines(), 1)
        if text.strip() and not text.strip().startswith("#") and number not in documented
    ]


def test_no_junk_drawers() -> None:
    assert not [p for p in SOURCES if p.name in BANNED_NAMES]


@pytest.mark.parametrize("core", CORES)
def test_cores_call_nothing_impure_and_iterate_over_no_set(core: str) -> None:
    paths = [p for p in PRODUCT if str(p.relative_to(ROOT)).startswith(core + "/")]
    assert paths
    assert [fault for path in paths for fault in parsed(path).faults_of_cores] == []


def _is_call_of(node: ast.AST, names: set[str]) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in names
    )


def _is_set(node: ast.expr) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"set", "frozenset"}
    )


def test_every_module_has_a_docstring() -> None:
    silent = [
        str(p.relative_to(ROOT))
        for p in PRODUCT
        if p.name != "__main__.py" and not parsed(p).documented
    ]
    assert not silent


def test_no_mocks_of_our_own_code_and_no_real_sleep_in_unit_tests() -> None:
    faults = []
    for path in SOURCES:
        name = str(path.relative_to(ROOT))
        if not name.startswith("tests/unit"):
            continue
        text = path.read_text()
        faults += [
            f"{name}: {word}" for word in ("Mock(", "mock.patch", "time.sleep(") if word in text
        ]
    assert not faults


#: Extras that `requirements.lock` leaves out: its ONNX Runtime has the module of another one.
UNLOCKED = {"host-cuda"}


def _extras() -> dict[str, list[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: dict[str, list[str]] = project["optional-dependencies"]
    return {"": project["dependencies"], **found}


def test_the_lock_is_made_of_all_extras_but_one() -> None:
    [line] = re.findall(r"^EXTRAS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named, extras = [*line.split()], _extras()
    for name in named:  # grows
        own = [one for one in map(Requirement, extras[name]) if one.name == "orchgpu"]
        named += [extra for one in own for extra in sorted(one.extras) if extra not in named]
    assert set(named) == extras.keys() - UNLOCKED - {""}


def test_the_lock_has_every_direct_dependency_within_its_bounds() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    pinned = dict(re.findall(r"^([a-z0-9-]+)==([^ ;]+)", lock, re.MULTILINE))
    for extra in _extras().keys() - UNLOCKED:
        for wanted in map(Requirement, _extras()[extra]):
            name = wanted.name.lower()
            if name != "orchgpu":
                assert name in pinned, f"{wanted} of [{extra}]: run make lock"
                assert wanted.specifier.contains(pinned[name]), f"{wanted}: run make lock"
