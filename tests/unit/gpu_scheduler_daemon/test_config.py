"""Settings of ssgmd and their sources; an unknown one is refused with a suggestion."""

from __future__ import annotations

from pathlib import Path

import pytest

from corekit.errors import AppError
from gpu_scheduler.daemon.config import ResolvedSetting, resolve


def written(folder: Path, text: str) -> str:
    path = folder / "ssgmd.toml"
    path.write_text(text)
    return str(path)


def test_a_flag_goes_before_a_variable_and_that_before_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, 'state = "/f"\nlisten = "10.0.0.1:1"\nhttp = "10.0.0.1:2"\n')
    environment = {"SSGMD_CONFIG": file, "SSGMD_HTTP": "10.0.0.2:2", "SSGMD_STATE": "/v"}
    found = resolve({"config": None, "state": "/flag"}, environment)
    assert found.settings["state"] == ResolvedSetting(value="/flag", source="flag --state")
    assert found.settings["http"] == ResolvedSetting(
        value="10.0.0.2:2", source="variable SSGMD_HTTP"
    )
    assert found.settings["listen"] == ResolvedSetting(value="10.0.0.1:1", source=file)
    assert found.settings["keys"] == ResolvedSetting(value=None, source="default")
    assert found.settings["time_scale"].value == "1"


def test_parameters_come_from_their_table(tmp_path: Path) -> None:
    file = written(
        tmp_path, '[parameters]\npolicy = "fair"\naging_s = "none"\n"quota.lab.devices" = 4\n'
    )
    found = resolve({"config": file}, {})
    assert found.parameters.policy == "fair"
    assert found.parameters.aging_s is None
    assert found.parameters.quota("lab").devices == 4
    assert set(found.parameter_sources) == {"policy", "aging_s", "quota.lab.devices"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('lisen = "x"', "'lisen' is unknown; did you mean 'listen'?"),
        ("zzz = 1", "'zzz' is unknown; known are state"),
        ('[parameters]\npolcy = "fair"', "did you mean 'policy'?"),
        ("[parameters]\nbypass_max = -1", "bypass_max -1 must lie in 0…"),
        ("[parameters]\nbypass_max = [1]", "bypass_max"),
        ("state = 5", "state must be a string, got 5"),
        ("parameters = 3", "parameters must be a table"),
        ("state = true", "state must be a string"),
        ("listen = ", "is not valid TOML"),
        ('standby = "maybe"', "standby must be true or false, got 'maybe'"),
        ("time_scale = 2", "'time_scale' is unknown"),
        ("a = " + "[" * 5000 + "]" * 5000, "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_named_with_its_fault(tmp_path: Path, text: str, said: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(AppError) as caught:
        resolve({"config": file}, {})
    assert caught.value.message.startswith(file)
    assert said in caught.value.message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(AppError, match=r"cannot read the configuration .*none: No such file"):
        resolve({"config": str(tmp_path / "none")}, {})
    (tmp_path / "large").write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(AppError, match="larger than"):
        resolve({"config": str(tmp_path / "large")}, {})


@pytest.mark.parametrize(
    ("text", "variable", "flag", "on"),
    [
        ("", None, None, False),
        ("standby = true", None, None, True),
        ("standby = true", "no", None, False),
        ("", "1", None, True),
        ("standby = false", "no", "yes", True),
    ],
)
def test_a_switch_of_each_source(
    tmp_path: Path, text: str, variable: str | None, flag: str | None, on: bool
) -> None:
    environment = {} if variable is None else {"SSGMD_STANDBY": variable}
    found = resolve({"config": written(tmp_path, text), "standby": flag}, environment)
    assert found.switch("standby") is on


def test_a_wrong_switch_in_a_variable_is_named() -> None:
    with pytest.raises(AppError, match="SSGMD_STANDBY must be yes or no, got 'perhaps'"):
        resolve({}, {"SSGMD_STANDBY": "perhaps"})
