"""`@orchgpu.function`: the plan of a definition file, from code that runs in Lambda as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import orchgpu
from corekit.budget import Budget
from corekit.errors import AppError
from fdl.diagnostics import Severity
from fdl.model import Document
from fdl.plan.desired import desired
from fdl.plan.facts import Facts
from fdl.plan.groups import deployed
from fdl.plan.resources import DeployTarget
from orchgpu.declaration import name_of
from orchgpu.deploy import declared
from orchgpu.deploy.deployment import names_of, validate
from orchgpu.deploy.files import read_document
from orchgpu.deploy.package import build
from tests.commandline import done

SOURCE = """
import orchgpu
from other import hidden

print("printed while it is imported")

@orchgpu.function(
    gpu={"memory": "512MiB", "kinds": ["cpu"]},
    input={"path": "queries/in", "suffix": [".fasta"]},
    output="answers/hits",
    memory=512, timeout=120,
    variables={"TOP": "1.10"},
    secrets={"TOKEN": "ssm:/search/token"},
    job={"max_wait": "10m"} if False else None,
    execution="host", host={"network": True},
)
def search_all(work):
    pass

@orchgpu.function(
    input=["answers/hits"], output=["best/one", "best/two"], name="pick", values=True,
    schedule="0 3 * * 1",
)
def best(work):
    pass

again = best
"""
OTHER = """
import orchgpu

@orchgpu.function(input="x/y")
def hidden(work):
    pass
"""
YAML = """
functions:
  aws:
  - lambda:
      name: search-all
      handler: mine.search_all
      memory: 512
      timeout: 120
      container: {environment: {Variables: {TOP: "1.10"}}}
      output: [{path: answers/hits}]
    gpu: {memory: 512MiB, kinds: [cpu]}
    secrets: {TOKEN: ssm:/search/token}
    job: {input: {path: queries/in, suffix: [.fasta]}}
    execution: host
    host: {network: true}
  - lambda:
      name: pick
      handler: mine.best
      input: [{path: answers/hits}]
      output: [{path: best/one}, {path: best/two}]
    schedule: "0 3 * * 1"
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    (tmp_path / "other.py").write_text(OTHER)
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "fdl.yaml").write_text(YAML)
    return tmp_path / "mine.py"


def test_a_decorated_module_has_the_plan_of_the_same_definition(module: Path) -> None:
    place = DeployTarget(account="123456789012", region="us-east-1")

    def planned(document: Document) -> object:
        functions = deployed(document)
        packages = [build(function, module.parent) for function in functions]
        return [
            desired(function, place, package.code, Budget(), Facts())
            for function, package in zip(functions, packages, strict=True)
        ]

    written = read_document(module.with_name("fdl.yaml"))
    assert planned(read_document(module)) == planned(written)
    assert names_of(str(module)) == ("search-all", "pick")
    _, notes = validate(module)
    assert [note.message for note in notes if "handler" in note.path] == []


def test_the_code_runs_in_a_package_with_the_standard_library_alone(module: Path) -> None:
    (function, _) = read_document(module).functions.aws
    package = build(function, module.parent)
    archive = module.with_name("package.zip")
    archive.write_bytes(package.data)
    code = (
        "import mine, sys; assert 'package.zip' in mine.__file__; assert mine.best;"
        "assert not {'click', 'yaml', 'msgspec'} & {*sys.modules}"
    )
    places = map(str, (archive, archive / "script", module.parent))  # the last one for `other`
    environment = {"PYTHONPATH": os.pathsep.join(places), "PATH": os.environ["PATH"]}
    elsewhere = module.parent / "elsewhere"
    elsewhere.mkdir()
    subprocess.run([sys.executable, "-S", "-c", code], env=environment, cwd=elsewhere, check=True)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import nothing_of_this_name", "No module named 'nothing_of_this_name'"),
        ("raise SystemExit(0)", "SystemExit"),
        ("x = (", "SyntaxError"),
        ("x = 1", "no function of it has @orchgpu.function"),
        ("import orchgpu\n@orchgpu.function()\ndef f(work): ...", "'input'"),
        (
            "import orchgpu\nclass A:\n  @orchgpu.function(input='a/b')\n  def f(work): ...",
            "not for 'A.f'",
        ),
        (
            "import orchgpu\n@orchgpu.function(input='a/b', memry=1)\ndef f(work): ...",
            "unknown key 'memry'; did you mean 'memory'?",
        ),
    ],
)
def test_a_wrong_module_is_refused_with_its_reason(
    source: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(source)
    with pytest.raises(AppError) as refused:
        read_document(file)
    assert refused.value.code.value == "invalid"
    assert str(file) in refused.value.message
    assert message in refused.value.message
    assert "declaration.py" not in refused.value.message.partition("\n")[0]


def test_an_import_that_never_ends_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declared, "IMPORT_S", 0.01)
    file = tmp_path / "slow.py"
    file.write_text("import threading; threading.Event().wait()")
    with pytest.raises(AppError, match="took more than"):
        declared.text_of(file)


def test_the_definition_of_a_module_is_printed_and_never_replaces_it(module: Path) -> None:
    shown = done(["fdl", "fmt", str(module)])
    assert shown.exit_code == 0
    assert "handler: mine.search_all" in shown.stdout
    refused = done(["fdl", "fmt", "--write", str(module)])
    assert refused.exit_code == 2
    assert "would replace the code" in refused.stderr
    assert module.read_text() == SOURCE
    assert done(["fdl", "validate", str(module.with_name("none.py"))]).exit_code == 3


@orchgpu.function(input="a/b", gpu={})
def double_it(work: int) -> int:
    return 2 * work


def test_a_decorated_function_is_still_a_function() -> None:
    assert double_it(4) == 8
    assert name_of(double_it) == "double-it"
    assert name_of(len) is None


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        orchgpu.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("arguments", "queued"),
    [("", True), (', gpu="none"', True), (', job={"attempts": 2}', True), (', job="none"', False)],
)
def test_a_decorated_function_has_jobs_unless_it_declines_them(
    tmp_path: Path, arguments: str, queued: bool
) -> None:
    file = tmp_path / "step.py"
    file.write_text(
        "import orchgpu\n\n"
        f"@orchgpu.function(input='raw/in', output='done/out'{arguments})\n"
        "def step(work):\n    pass\n"
    )
    (function,) = read_document(file).functions.aws
    assert (function.queued, function.gpu) == (queued, None)
    assert [str(storage.path) for storage in function.user_input] == ["raw/in"]


WORKFLOW = """
import orchgpu

@orchgpu.function(input="photos/in", output="photos/small")
def prepare(work):
    pass

@orchgpu.function(input={"path": "photos/small", "each": True}, output="photos/labels")
def label(work):
    pass

orchgpu.workflow("labels", steps=[prepare, "label"], deadline="10m")
"""


def test_a_workflow_of_a_module_is_that_of_a_definition(tmp_path: Path) -> None:
    file = tmp_path / "photos.py"
    file.write_text(WORKFLOW, encoding="utf-8")
    document, notes = validate(file)
    (workflow,) = document.workflows
    assert (workflow.name, workflow.steps, workflow.deadline_s) == (
        "labels",
        ("prepare", "label"),
        600.0,
    )
    assert [note.message for note in notes if note.severity is Severity.ERROR] == []
    assert names_of(str(file)) == ("prepare", "label", "labels")
    with pytest.raises(TypeError, match="not the name of a function"):
        orchgpu.workflow("labels", steps=[print])
