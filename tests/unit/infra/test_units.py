"""The systemd units run programs that exist, with options they have and variables that are set."""

from __future__ import annotations

import configparser
import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

import gpu_scheduler.daemon.cli
import gpu_scheduler.monitor.cli
import remote_gpu.host.cli
from corekit.aio.environment import SCALE_VARIABLE
from corekit.budget import Budget
from gpu_scheduler.client.access import CA_VARIABLE, KEY_VARIABLE
from gpu_scheduler.daemon.config import SETTINGS, variable_of
from orchgpu.cli.main import cli
from orchgpu.local.programs import HISTORY_VARIABLE

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "infra/systemd"
COMMANDS: dict[str, click.Command] = {
    "ssgmd": gpu_scheduler.daemon.cli.main,
    "gpud": remote_gpu.host.cli.main,
    "ssgm-monitor": gpu_scheduler.monitor.cli.main,
    "orchgpu": cli,
    "orchgpu-web": cli,
    "orchgpu-collect": cli,
    "orchgpu-fleet": cli,
}
#: Unit → its program, where that has another name.
PROGRAMS = dict.fromkeys(("orchgpu-web", "orchgpu-collect", "orchgpu-fleet"), "orchgpu")
#: Read by the programs themselves, not through an option.
AMBIENT = {
    SCALE_VARIABLE,
    KEY_VARIABLE,
    CA_VARIABLE,
    HISTORY_VARIABLE,
    "AWS_DEFAULT_REGION",
    *map(variable_of, SETTINGS),
}
#: Each of these can take a host's GPUs away, or stop a compiler inside a worker.
HIDES_DEVICES = {
    "PrivateDevices",
    "DevicePolicy",
    "DeviceAllow",
    "ProtectClock",
    "MemoryDenyWriteExecute",
    "ProcSubset",
    "PrivateUsers",
}

units = pytest.mark.parametrize("name", COMMANDS)


def _unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, comment_prefixes="#", delimiters="=")
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys keep their case
    parser.read_string((FOLDER / f"{name}.service").read_text())
    return parser


def _words(name: str) -> list[str]:
    return shlex.split(_unit(name)["Service"]["ExecStart"].replace("\\\n", " "))


def _example(name: str, *, with_comments: bool = False) -> dict[str, str]:
    pattern = r"^(?:# )?([A-Z][A-Z_]*)=(.*)$" if with_comments else r"^([A-Z][A-Z_]*)=(.*)$"
    text = (FOLDER / f"{name}.env.example").read_text()
    return dict(re.findall(pattern, text, flags=re.MULTILINE))


def _options(name: str, words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that really runs (a group's subcommand), and what it is given."""
    command = COMMANDS[name]
    while isinstance(command, click.Group) and words:
        subcommand = command.get_command(click.Context(command), words[0])
        if subcommand is None:
            break
        command, words = subcommand, words[1:]
    return command, words


def test_every_unit_and_example_is_known() -> None:
    assert {path.name for path in FOLDER.glob("*.service")} == {f"{n}.service" for n in COMMANDS}
    examples = {path.name for path in FOLDER.glob("*.env.example")}
    assert examples == {f"{name}.env.example" for name in COMMANDS}


@units
def test_runs_a_console_script(name: str) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    program = Path(_words(name)[0])
    assert program.is_absolute()
    assert program.name == PROGRAMS.get(name, name)
    assert program.name in scripts


@units
def test_every_flag_exists_and_every_required_one_is_given(name: str) -> None:
    command, words = _options(name, _words(name)[1:])
    known = {flag for parameter in command.params for flag in parameter.opts}
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert given <= known
    assert {p.opts[0] for p in command.params if p.required} <= given


@units
def test_flags_inside_example_values_exist(name: str) -> None:
    for values in (_example(name), _example(name, with_comments=True)):
        words = " ".join(value.strip('"') for value in values.values()).split()
        command, _ = _options(name, _words(name)[1:])
        known = {flag for parameter in command.params for flag in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known


@units
def test_every_variable_is_set_and_every_set_one_is_used(name: str) -> None:
    used = set(re.findall(r"\$\{?([A-Z_]+)\}?", " ".join(_words(name))))
    assert used | (AMBIENT & _example(name).keys()) == _example(name).keys()


@units
def test_the_example_is_accepted_by_the_program(name: str) -> None:
    """The line as systemd makes it, parsed by click: types, choices, required options."""
    values = {key: value.strip('"') for key, value in _example(name).items()}
    command, words = _options(name, _words(name)[1:])
    arguments: list[str] = []
    for word in words:
        if word.startswith("$") and not word.startswith("${"):
            arguments += shlex.split(values[word[1:]])  # systemd splits an unbraced variable
        else:
            arguments.append(re.sub(r"\$\{([A-Z_]+)\}", lambda m: values[m[1]], word))
    command.make_context(name, arguments)


@units
def test_reads_its_own_settings_as_its_own_user_and_keeps_its_own_state(name: str) -> None:
    service = _unit(name)["Service"]
    assert service["EnvironmentFile"] == f"/etc/orchgpu/{name}.env"
    assert service["User"] == service["StateDirectory"] == service["RuntimeDirectory"] == name
    users = (FOLDER / "orchgpu.sysusers").read_text()
    assert re.search(rf"^u {name} +- .* /var/lib/{name}$", users, flags=re.MULTILINE)


@units
def test_stops_in_order_and_starts_again_only_where_that_helps(name: str) -> None:
    service = _unit(name)["Service"]
    assert service["KillMode"] == "mixed"
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"] == "2"
    if name == "orchgpu":
        assert float(service["TimeoutStopSec"]) > Budget().drain_s


@pytest.mark.parametrize("name", ["gpud", "ssgm-monitor"])
def test_hardening_leaves_devices_alone(name: str) -> None:
    assert not HIDES_DEVICES & _unit(name)["Service"].keys()


def test_a_worker_out_of_memory_does_not_stop_its_host() -> None:
    assert _unit("gpud")["Service"]["OOMPolicy"] == "continue"
