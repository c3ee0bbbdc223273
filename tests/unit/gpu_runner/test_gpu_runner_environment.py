"""The script's environment: its variables, and those that it must not have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.timing import CAP_SLACK_S
from fdl.lint.variables import SET_BY_RUNNER
from lambda_functions.gpu_runner.errors import EnvelopeError, RunnerError
from lambda_functions.gpu_runner.limits import TimeLimits
from lambda_functions.gpu_runner.sandbox import Workspace
from lambda_functions.gpu_runner.script import environment
from lambda_functions.gpu_runner.script.environment import middleware_variables, user_variables
from lambda_functions.gpu_runner.settings import read_settings
from remote_gpu.wire.variables import RULES

SECRETS = {
    "AWS_ACCESS_KEY_ID": "s",
    "AWS_SECRET_ACCESS_KEY": "s",
    "AWS_SESSION_TOKEN": "s",
    "AWS_LAMBDA_RUNTIME_API": "s",
    "AWS_ENDPOINT_URL": "s",
    "_HANDLER": "s",
    "LD_PRELOAD": "s",
    "BASH_ENV": "s",
    "PYTHONSTARTUP": "s",
    "ORCHGPU_VARIABLES": "s",
    "_X_AMZN_TRACE_ID": "s",
}


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    with Workspace(tmp_path) as workspace:
        yield workspace


def test_the_base_is_built_from_empty(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib")
    found = environment.base_variables(workspace)
    assert not set(found) & set(SECRETS)
    assert found["LD_LIBRARY_PATH"] == "/opt/lib"
    for name in ("HOME", "TMPDIR"):
        assert Path(found[name]).is_relative_to(workspace.root)


def test_there_is_a_default_path(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PATH")
    assert "/usr/bin" in environment.base_variables(workspace)["PATH"].split(":")


def test_the_users_library_path_wins(workspace: Workspace) -> None:
    """SCAR's supervisor loses it."""
    merged = environment.merged(
        environment.base_variables(workspace), user_variables({"LD_LIBRARY_PATH": "/mine"})
    )
    assert merged["LD_LIBRARY_PATH"] == "/mine"


def test_scars_variables_win_over_the_users(workspace: Workspace) -> None:
    scar = environment.scar_variables(
        workspace, input_file=workspace.input / "x", key="k", event={"Records": []}
    )
    merged = environment.merged({"INPUT_FILE_PATH": "/etc/passwd"}, scar)
    assert merged["INPUT_FILE_PATH"] == str(workspace.input / "x")
    assert merged["EVENT_TIME"] == ""
    assert json.loads(merged["EVENT"]) == {"Records": []}


def test_every_python_path_is_kept() -> None:
    root = str(environment.IMPORT_ROOT)
    assert environment.merged({"PYTHONPATH": "/a"}, {})["PYTHONPATH"] == f"/a:{root}"
    assert environment.merged({})["PYTHONPATH"] == root


@pytest.mark.parametrize("name", ["", "A=B", "1A", "A B", "A\n", "A\0", "É"])
def test_invalid_names_of_variables_are_refused(name: str) -> None:
    with pytest.raises(EnvelopeError, match="variable"):
        user_variables({name: "x"})


@pytest.mark.parametrize("value", [1, None, "a\0b"])
def test_values_other_than_strings_are_refused(value: object) -> None:
    with pytest.raises(EnvelopeError):
        user_variables({"A": value})


@pytest.mark.parametrize("name", environment.SET_AT_TIMES)
def test_names_of_the_runner_are_none_of_the_users(name: str) -> None:
    assert user_variables({name: "x", "MODE": "m"}) == {"MODE": "m"}
    assert name in SET_BY_RUNNER, "lint says that the script never sees the value"


GOOD = {
    "rcuda": {
        "RCUDA_DEVICE_COUNT": "1",
        "RCUDA_DEVICE_0": "127.0.0.1@{0}:0",
        "RCUDAPROTO": "TCP",
    },
    "builtin": {},
}


@pytest.mark.parametrize("middleware", GOOD)
def test_variables_of_the_allow_list_pass(middleware: str) -> None:
    assert middleware_variables(middleware, GOOD[middleware]) == GOOD[middleware]


@pytest.mark.parametrize("middleware", RULES)
@given(
    name=st.sampled_from([*SECRETS, "PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "RCUDA_DEVICE_", ""])
)
def test_variables_outside_of_the_allow_list_are_refused(middleware: str, name: str) -> None:
    with pytest.raises(EnvelopeError):
        middleware_variables(middleware, {name: "1"})


@given(value=st.text())
def test_values_follow_their_grammar(value: str) -> None:
    try:
        middleware_variables("rcuda", {"RCUDA_DEVICE_0": value})
    except EnvelopeError:
        return
    assert value.isascii()
    assert not set(value) & set(" \n\0$`'\";/=")


def test_an_unknown_middleware_is_refused() -> None:
    with pytest.raises(EnvelopeError, match="unknown middleware"):
        middleware_variables("none", {})


# ------------------------------------------------------------------ settings


def test_settings_as_deploy_writes_them() -> None:
    found = read_settings(
        {
            "ORCHGPU_MODE": "plain",
            "ORCHGPU_SCRIPT": "script/run.sh",
            "ORCHGPU_TIMEOUT_THRESHOLD_S": "10",
            "ORCHGPU_ADVANCE_S": "30",
            "ORCHGPU_OUTPUTS": '[{"bucket": "b"}]',
            "ORCHGPU_VARIABLES": '{"A": "1"}',
            "LAMBDA_TASK_ROOT": "/var/task",
        }
    )
    assert found.mode == "plain"
    assert found.script == Path("/var/task/script/run.sh")
    assert (found.threshold_s, found.advance_s) == (10, 30)
    assert (found.outputs, found.variables) == (({"bucket": "b"},), {"A": "1"})


def test_settings_without_variables_have_defaults() -> None:
    found = read_settings({})
    assert (found.mode, found.script, found.threshold_s) == (None, None, 0)
    assert found.advance_s == 0
    assert (found.outputs, found.variables, found.log_level) == ((), {}, "INFO")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ORCHGPU_MODE", "fast"),
        ("ORCHGPU_TIMEOUT_THRESHOLD_S", "ten"),
        ("ORCHGPU_ADVANCE_S", "auto"),
        ("ORCHGPU_OUTPUTS", "{}"),
        ("ORCHGPU_OUTPUTS", "["),
        ("ORCHGPU_VARIABLES", "[]"),
    ],
)
def test_an_invalid_setting_is_named(name: str, value: str) -> None:
    with pytest.raises(RunnerError, match=name):
        read_settings({name: value})


@pytest.mark.parametrize(
    ("remaining_s", "threshold_s", "kept_s"),
    [(900, 0, 90), (900, 100, 100), (30, 0, 5), (30, 10, 10), (10, 0, 5), (3, 10, 1.5)],
)
def test_how_much_time_is_kept_back(remaining_s: float, threshold_s: float, kept_s: float) -> None:
    time = TimeLimits.within(remaining_s, threshold_s)
    assert time.end_s - time.script_s == pytest.approx(kept_s)
    assert 0 < time.grace_s < kept_s
    assert time.cap_s == pytest.approx(remaining_s + CAP_SLACK_S, abs=1)


@pytest.mark.parametrize(
    ("remaining_s", "threshold_s", "kept"),
    [
        (15.0, 10.0, "half is kept"),
        (60.0, 10.0, "timeout_threshold keeps 10 s"),
        (300.0, 0.0, "30.0 s is kept"),
    ],
)
def test_the_origin_of_a_time_limit_is_stated(
    remaining_s: float, threshold_s: float, kept: str
) -> None:
    said = TimeLimits.within(remaining_s, threshold_s).origin
    given = f"of the {remaining_s:.0f} s that the function's timeout gives a run"
    assert said == f"{given}, {kept} for outputs and result; set a longer `timeout`"


@pytest.mark.parametrize(
    ("remaining_s", "advance_s", "own_s"), [(90, 30, 60), (60, 0, 60), (40, 30, 20)]
)
def test_the_wait_for_a_device_takes_none_of_the_functions_own_time(
    remaining_s: float, advance_s: float, own_s: float
) -> None:
    limits = TimeLimits.within(remaining_s, 0.0, advance_s)
    assert limits.end_s - limits.start_s == pytest.approx(own_s)
    assert limits.cap_s == pytest.approx(own_s + CAP_SLACK_S, abs=1)
    waited_s = 12.0
    late = replace(limits, **{name: getattr(limits, name) - waited_s for name in _MOMENTS})
    begun = late.begun()
    own_waited_s = min(waited_s, limits.spare_s)
    assert begun.end_s - late.end_s == pytest.approx(own_waited_s, abs=1)
    assert begun.script_s - late.script_s == begun.end_s - late.end_s
    assert begun.end_s <= late.start_s + remaining_s, "Lambda ends the function"


_MOMENTS = ("script_s", "end_s", "start_s")


def test_a_container_gets_no_path_of_the_functions_own(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    with workspace:
        found = environment.merged(
            environment.container_variables(workspace), {"A": "1"}, own_packages=False
        )
    assert set(found) - {"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_LAMBDA_FUNCTION_NAME"} == {
        "HOME",
        "TMPDIR",
        "A",
    }
