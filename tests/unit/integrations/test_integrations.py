"""Plugins of other tools, without the tools: their packages, and their pure functions."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.tidy.tracked import ROOT

FOLDER = ROOT / "integrations"
PACKAGES = sorted(file.parent for file in FOLDER.glob("*/pyproject.toml"))
#: Modules of the tools themselves, by package.
TOOLS = {
    "airflow-provider-orchgpu": {"airflow"},
    "parsl-orchgpu": {"parsl"},
    "snakemake-executor-plugin-orchgpu": {"snakemake_interface_executor_plugins"},
}


def project(package: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    return found


def module_of(package: Path) -> Path:
    return package / package.name.replace("-", "_")


def load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"of_integrations_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_tool_has_its_package() -> None:
    assert {one.name for one in PACKAGES} == set(TOOLS)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda one: one.name)
def test_a_package_takes_this_release_of_ours_and_brings_its_page(package: Path) -> None:
    found = project(package)
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert found["name"] == package.name
    assert found["requires-python"] == ours["requires-python"]
    needed = {one.name: one for one in map(Requirement, found["dependencies"])}
    assert Version(ours["version"]) in needed["orchgpu"].specifier
    assert all(one.specifier for one in needed.values()), "every bound is stated"
    assert (package / found["readme"]).is_file()
    assert (module_of(package) / "__init__.py").is_file()
    assert list((package / "tests").glob("test_*.py"))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda one: one.name)
def test_a_package_imports_its_tool_and_ours_alone(package: Path) -> None:
    imported = set()
    for file in module_of(package).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").split(".")[0])
            elif isinstance(node, ast.Import):
                imported |= {one.name.split(".")[0] for one in node.names}
    foreign = imported - set(sys.stdlib_module_names)
    assert foreign <= {*TOOLS[package.name], module_of(package).name, "orchgpu", "corekit"}


def test_airflow_finds_its_provider_by_an_entry_point() -> None:
    package = FOLDER / "airflow-provider-orchgpu"
    entry = project(package)["entry-points"]["apache_airflow_provider"]["provider_info"]
    module, _, name = entry.partition(":")
    assert module == module_of(package).name
    info = getattr(load(module_of(package) / "__init__.py"), name)()
    assert info["package-name"] == package.name
    assert info["versions"] == [project(package)["version"]]


# ---------------------------------------------------------------------- Snakemake

FILES: Any = load(
    FOLDER / "snakemake-executor-plugin-orchgpu/snakemake_executor_plugin_orchgpu/files.py"
)


def test_a_rule_names_its_function() -> None:
    assert FILES.function_of({"orchgpu_function": "read", "mem_mb": 5}) == "read"
    assert FILES.function_of({"mem_mb": 5}) is None
    assert FILES.function_of({"orchgpu_function": ""}) is None


def test_names_of_objects_differ_by_path_and_keep_the_suffix() -> None:
    names = {FILES.object_name(Path(one)) for one in ("a/x.fq", "b/x.fq", "x.fq")}
    assert len(names) == 3
    assert all(name.startswith("x-") and name.endswith(".fq") for name in names)
    assert FILES.object_name(Path("x.fq")) == FILES.object_name(Path("x.fq").absolute())


@pytest.mark.parametrize(
    ("targets", "files", "pairs"),
    [
        (["out/a.txt"], ["j/x-1.loud"], [("out/a.txt", "j/x-1.loud")]),
        (["a.json", "a.tsv"], ["x.tsv", "x.json"], [("a.json", "x.json"), ("a.tsv", "x.tsv")]),
        (["a.tsv"], ["x.tsv", "x.json"], [("a.tsv", "x.tsv")]),
        ([], ["x.tsv"], []),
    ],
)
def test_outputs_of_a_rule_take_files_of_their_suffix(
    targets: list[str], files: list[str], pairs: list[tuple[str, str]]
) -> None:
    found = FILES.placed(targets, [Path(one) for one in files])
    assert [(str(target), str(file)) for target, file in found] == pairs


@pytest.mark.parametrize(
    ("targets", "files"),
    [
        (["a.txt"], []),
        (["a.txt"], ["x.txt", "y.txt"]),
        (["a.txt", "b.txt"], ["x.txt"]),
        (["a.txt", "b.txt"], ["x.txt", "x.json"]),
        (["a.txt"], ["x.tsv", "x.json"]),
    ],
)
def test_an_output_without_its_one_file_is_refused(targets: list[str], files: list[str]) -> None:
    with pytest.raises(ValueError, match="one file with its suffix is needed; the job wrote"):
        FILES.placed(targets, [Path(one) for one in files])


def test_a_job_has_one_input() -> None:
    assert FILES.only_input(["a"]) == Path("a")
    for inputs in ([], ["a", "b"]):
        with pytest.raises(ValueError, match="one input file"):
            FILES.only_input(inputs)


def test_a_cancelled_command_leaves_no_process(tmp_path: Path) -> None:
    plugin = next(one for one in PACKAGES if one.name.startswith("snakemake"))
    processes = load(module_of(plugin) / "processes.py")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = processes.started(f"(echo begun; exec sleep 100) > {pipe} & wait")
    with pipe.open() as output:  # of the child, which has it until it ends
        assert output.readline() == "begun\n"
        processes.end(process)
        assert output.read() == ""
    assert process.wait() != 0
    processes.end(process)
