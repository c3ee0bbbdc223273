"""`--weather` of `up` and `demo`, and the weather that `doctor` shows."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from local_cloud.model.weather import Weather
from orchgpu.cli.commands.operation.doctor import check_weather
from orchgpu.cli.local.launching import WEATHER_VARIABLE, weather_option
from tests.commandline import done
from tests.embedded_cloud import client_of, cloud_in, refusal
from tests.local_systems import system_record


@click.command()
@weather_option
def show(weather: str) -> None:
    click.echo(weather)


def chosen(*arguments: str) -> str:
    return CliRunner().invoke(show, arguments, catch_exceptions=False).stdout.strip()


def test_weather_without_a_seed_gets_one() -> None:
    assert chosen() == ""
    assert chosen("--weather", "none:seed=3") == ""
    assert re.fullmatch(r"aws:seed=\d+", chosen("--weather", "aws"))
    assert re.fullmatch(r"aws:scale=0\.1,seed=\d+", chosen("--weather", "aws:scale=0.1"))
    assert chosen("--weather", "aws:seed=7") == "aws:seed=7"


def test_the_variable_chooses_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WEATHER_VARIABLE, "aws:seed=9")
    assert chosen() == "aws:seed=9"


@pytest.mark.parametrize("command", ["up", "demo"])
def test_a_wrong_weather_starts_nothing(command: str) -> None:
    answer = done([command, "--weather", "aws:rain=1"])
    assert answer.exit_code == 2
    assert "'rain=1' is not FIELD=VALUE" in answer.output


@pytest.mark.parametrize("command", ["up", "demo"])
def test_only_the_embedded_cloud_has_weather(command: str) -> None:
    answer = done([command, "--cloud", "moto", "--weather", "aws"])
    assert answer.exit_code == 2
    assert "--weather: moto has none" in answer.output


def test_doctor_shows_the_weather_and_what_took_effect(tmp_path: Path) -> None:
    with cloud_in(tmp_path, weather=Weather(name="mine", slow_down_rate=1.0)) as address:
        endpoint = f"http://{address.netloc}"
        system = system_record(endpoint=endpoint, weather="mine, scale 1, seed -")
        assert check_weather(system) == "mine, scale 1, seed -; no rule took effect yet"
        with client_of(address, "s3") as s3:
            s3.create_bucket(Bucket="b-1")
            assert refusal(s3.put_object, Bucket="b-1", Key="k", Body=b"") == "SlowDown"
        assert check_weather(system) == "mine, scale 1, seed -; slow down: 1"
