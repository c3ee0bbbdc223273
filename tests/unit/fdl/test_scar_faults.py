"""Faults of SCAR in definitions and deploys, and the page that lists a test for each."""

import ast
import re
from pathlib import Path

import pytest

from corekit.budget import Budget
from corekit.decode import encode
from corekit.errors import AppError
from fdl.keys.reference import KeyStatus, known_keys
from fdl.lint.lint import lint
from fdl.parse import parse
from fdl.plan.desired import desired
from fdl.plan.plan import removal
from fdl.schema.schema import ListOf
from tests.unit.fdl.definitions import CODE, LOCAL
from tests.unit.fdl.test_plan import BLAST, World

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "reference/scar-faults.md").read_text()
    named = re.findall(r"`(test_\w+)`", page)
    text = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    defined = set(re.findall(r"def (test_\w+)", text))
    assert [name for name in named if name not in defined] == []
    faults = re.findall(r"^\| ([SOC]\d+) \|", page, flags=re.MULTILINE)
    count = {"S": 9, "O": 13, "C": 13}
    assert faults == [f"{letter}{n}" for letter in count for n in range(1, count[letter] + 1)]


def test_credentials_of_a_file_are_not_deployed() -> None:
    """S9: SCAR sends them in clear in a variable of the function."""
    text = (
        "functions:\n  aws:\n"
        "  - lambda:\n      name: f\n      init_script: s\n"
        "      input: [{storage_provider: minio.m, path: inn}]\n"
        "      output: [{storage_provider: s3.mine, path: out}]\n"
        "    gpu: {}\n"
        "storage_providers:\n"
        "  s3: {mine: {access_key: PLANTED-1, secret_key: PLANTED-2}}\n"
        "  minio: {m: {endpoint: 'http://x', access_key: PLANTED-3, secret_key: PLANTED-4}}\n"
    )
    document = parse(text)
    (function,) = document.functions.aws
    made = desired(function, LOCAL, CODE, Budget())
    assert "PLANTED" not in str(encode(list(made.resources)))
    assert "PLANTED" not in " ".join(note.message for note in lint(document, place=LOCAL))


def _blocks() -> list[str]:
    return [
        known.path
        for known in known_keys()
        if known.block and known.status is not KeyStatus.TRANSLATED
    ]


@pytest.mark.parametrize("path", _blocks())
def test_an_unknown_key_is_an_error_in_every_block(path: str) -> None:
    """C2: `memmory: 4096` deploys with 512."""
    free = path in ("workflows", "functions.aws[].gpu.times")
    value = "{NAME: {zzz: 1}}" if free else "{zzz: 1}"
    for word in reversed(path.split(".")):
        value = f"{{{word.removesuffix('[]')}: {f'[{value}]' if word.endswith('[]') else value}}}"
    known = next(known for known in known_keys() if known.path == path)
    if isinstance(known.key.reader, ListOf):
        value = value.replace("{zzz: 1}", "[{zzz: 1}]")
    with pytest.raises(AppError) as caught:
        parse(value)
    assert "'zzz'" in caught.value.message


def test_a_list_is_not_merged_with_defaults() -> None:
    """C3: a file's list is added to the defaults'."""
    text = "functions: {aws: [{lambda: {name: f, architectures: [arm64], layers: ['arn:a']}}]}"
    (function,) = parse(text).functions.aws
    assert (function.function.architectures, function.function.layers) == (("arm64",), ("arn:a",))


def test_rm_continues_where_pieces_are_missing() -> None:
    """C7: `rm` aborts at the first thing that is not there."""
    world = World()
    world.apply(world.plan(BLAST).steps)
    for key in ("queue/blast-jobs", "function/blast", "bucket/answers"):
        del world.resources[key]
    world.apply(removal(["blast"], world.observed(), LOCAL).steps)
    assert [key for key in world.resources if "state" not in key] == []
    assert removal(["blast"], world.observed(), LOCAL).empty


def test_no_command_asks_anything() -> None:
    """C9: prompts block CI."""
    asking = ("prompt", "confirm", "getpass", "input")
    calls = [
        f"{path.name}:{node.lineno}"
        for path in (ROOT / "orchgpu" / "cli").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and (getattr(node.func, "attr", None) or getattr(node.func, "id", "")) in asking
    ]
    assert calls == []
