"""`orchgpu run FILE.yaml`: what is run of a file, and what is refused before any deploy."""

from __future__ import annotations

from pathlib import Path

import pytest

from corekit.errors import AppError, ErrorCode
from fdl.parse import parse
from orchgpu.cli.definition.deploying import runnable
from orchgpu.cli.options import is_definition
from tests.commandline import done

A = "{lambda: {name: a, init_script: s.sh, input: [{path: inn}], output: [{path: mid}]}}"
B = "{lambda: {name: b, init_script: s.sh, input: [{path: mid}], output: [{path: out}]}}"
C = "{lambda: {name: c, init_script: s.sh, input: [{path: other}]}}"
NONE = "{lambda: {name: n, init_script: s.sh, input: [{path: inn}]}, job: none}"


def text(*functions: str, more: str = "") -> str:
    return f"functions: {{aws: [{', '.join(functions)}]}}\n{more}"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (text(A), "a"),
        (text(A, B), "a"),
        (text(B, A), "a"),
        (text(A, NONE), "a"),
        (text(A, B, C, more="workflows: {w: {steps: [a, b]}}"), "w"),
    ],
)
def test_the_only_one_is_run(given: str, name: str) -> None:
    assert runnable(parse(given.encode(), "f.yaml")) == name


@pytest.mark.parametrize(
    ("given", "why"),
    [(text(A, C), "several to run: a, c;"), (text(NONE), "no function with jobs")],
)
def test_of_none_or_several_nothing_is_run(given: str, why: str) -> None:
    with pytest.raises(AppError, match=why) as caught:
        runnable(parse(given.encode(), "f.yaml"))
    assert caught.value.code is ErrorCode.INVALID


def test_a_definition_is_known_by_its_name() -> None:
    assert all(map(is_definition, ("-", "f.yaml", "../F.YML", "search.py")))
    assert not any(map(is_definition, ("search", "f_yaml", "a-py")))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["f.yaml", "none.txt"], "there is no file 'none.txt'"),
        (["f.yaml", "f.yaml", "--quote"], "orchgpu quote f.yaml"),
        (["search", "f.yaml", "--watch"], "--watch deploys FILE.yaml again"),
        (["f.yaml", "f.yaml"], "several to run: a, c"),
    ],
)
def test_what_cannot_be_run_is_refused_before_a_cloud_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.yaml").write_text(text(A, C))
    refused = done(["run", *arguments])
    assert refused.exit_code == 2, refused.output
    assert why in refused.stderr


def test_real_aws_needs_consent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "never sent")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.yaml").write_text(text(A))
    assert "--yes-real-aws" in done(["run", "f.yaml", "f.yaml"]).stderr
