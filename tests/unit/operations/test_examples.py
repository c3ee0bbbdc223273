"""The examples as files: they parse, their scripts can be started, their data is licensed."""

from __future__ import annotations

import ast
import os
import re
import runpy
import sys
from pathlib import Path

import pytest

from fdl.diagnostics import FileFacts
from fdl.lint.lint import lint
from fdl.parse import parse
from operations.alignment.fasta import parse_fasta
from remote_gpu.client import Local
from tests.drivers import needs_cpu_driver

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted(path.parent for path in (ROOT / "fdl/examples").glob("*/fdl.yaml"))
#: An image has packages of its own.
IN_ZIPS = [
    folder for folder in EXAMPLES if "runtime: image" not in (folder / "fdl.yaml").read_text()
]


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_complete(folder: Path) -> None:
    document = parse((folder / "fdl.yaml").read_bytes(), f"{folder.name}/fdl.yaml")
    functions = document.functions.aws
    assert any(function.queued for function in functions)
    for function in functions:
        if (handler := function.function.handler) is not None:
            module, name = handler.rsplit(".", 1)
            assert callable(runpy.run_path(str(folder / f"{module}.py"))[name])
        else:
            script = folder / (function.function.init_script or "")
            assert os.access(script, os.X_OK)
            assert script.read_text().startswith("#!/usr/bin/env python3\n")
    text = (folder / "README.md").read_text()
    assert f"orchgpu deploy fdl/examples/{folder.name}/fdl.yaml" in text
    commands = re.findall(r"(?m)^orchgpu run (\S+) (\S+)", text)
    first_steps = {workflow.name: workflow.steps[0] for workflow in document.workflows}
    for name, files in commands:
        first = first_steps.get(name, name)
        function = next(one for one in functions if first in (one.name, one.group))
        suffixes = tuple(s for storage in function.user_input for s in storage.suffixes)
        found = list(ROOT.glob(files))
        assert found
        assert all(path.name.endswith(suffixes or ("",)) for path in found)
    places = [f"s3://{storage.path}/" for storage in functions[0].user_input]
    assert commands or all(f"Upload to `{place}`" in text for place in places)


@pytest.mark.parametrize("folder", IN_ZIPS, ids=lambda path: path.name)
def test_a_step_needs_the_standard_library_and_what_the_runner_brings(folder: Path) -> None:
    for script in folder.glob("*.py"):
        for node in ast.walk(ast.parse(script.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                brought = name in ("remote_gpu.client", "lambda_functions.work")
                assert brought or name in sys.stdlib_module_names


def test_the_readme_shows_a_valid_definition_and_script() -> None:
    text = (ROOT / "README.md").read_text()
    (definition,) = re.findall(r"(?s)```yaml\n(.*?)```", text)
    (script,) = re.findall(r"(?s)```python\n(.*?)```", text)
    first, _, _ = script.partition("\n")
    files = {"search.py": FileFacts(first_line=first.encode() + b"\n", executable=True)}
    document = parse(definition)
    assert lint(document, files=files) == ()
    assert ast.parse(script)
    (run,) = re.findall(r"orchgpu run (\S+) (\S+)", text)
    assert run[0] == document.functions.aws[0].name
    assert (ROOT / run[1]).is_file()


def test_every_protein_is_listed_with_its_accession() -> None:
    notes = (ROOT / "DATA-LICENSES.md").read_text()
    listed = set(re.findall(r"(?m)^\| ([A-Z0-9]{6,10}) \| ([A-Z0-9]+_[A-Z0-9]+) \| (\d+) ", notes))
    folder = ROOT / "fdl/examples/sequence-search"
    files = [folder / "database/proteins.fasta", *(folder / "input").glob("*.fasta")]
    entries = {
        (*protein.name.split("|")[1:], str(len(protein.residues)))
        for file in files
        for protein in parse_fasta(file.read_bytes(), file=file.name)
        if protein.name.startswith("sp|")
    }
    assert entries == listed
    assert len(listed) <= 200


@needs_cpu_driver
def test_edges_are_found_where_shades_change() -> None:
    example = runpy.run_path(str(ROOT / "fdl/examples/edge-detection/edges.py"))
    image = bytes(200 if x >= 10 else 50 for _ in range(12) for x in range(20))
    assert example["read_pgm"](b"P5\n# drawn\n20 12\n255\n" + image) == (20, 12, image)
    with Local() as device:
        found = device.run(example["edge_graph"](20, 12), image=image)
    edges = found.outputs["edges"]
    rows = {bytes(edges[20 * y : 20 * y + 20]) for y in range(12)}
    (row,) = rows
    assert [x for x in range(20) if row[x]] == [8, 9, 10, 11]


def test_the_nearest_vector_is_the_most_parallel() -> None:
    folder = ROOT / "fdl/examples/nearest-vectors"
    example = runpy.run_path(str(folder / "nearest.py"))
    names, vectors = example["read_vectors"](folder / "input/colours.csv")
    with Local() as device:
        cosines, _ = example["likeness"](device, vectors)
    by_hand = [sum(a * b for a, b in zip(v, w, strict=True)) for v in vectors for w in vectors]
    assert list(cosines) == pytest.approx(by_hand, abs=1e-6)
    assert len(names) ** 2 == len(cosines)
