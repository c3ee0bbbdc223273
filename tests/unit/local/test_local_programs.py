"""Which programs a local system is; pure."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchgpu.local.home import Home
from orchgpu.local.programs import LocalSettings, Programs, base_environment, cores_of

READY: dict[str, dict[str, object]] = {
    "cloud": {"endpoint": "http://127.0.0.1:4566"},
    "scheduler": {"socket": "127.0.0.1:4700", "http": "127.0.0.1:4701"},
}


def programs(tmp_path: Path, **settings: Any) -> Programs:
    given = {"cores": (0, 1), "host_memory_mib": 512, "data": {}, **settings}
    return Programs(LocalSettings(**given), Home(tmp_path), {"PATH": "/bin"})


@given(st.lists(st.integers(0, 500), unique=True, min_size=1).map(sorted), st.integers(1, 6))
def test_hosts_own_their_cores_or_share_all(cores: list[int], parts: int) -> None:
    split = [cores_of(index, parts, tuple(cores)) for index in range(parts)]
    if len(cores) < parts:
        assert split == [tuple(cores)] * parts
    else:
        assert sorted(core for part in split for core in part) == cores
        assert max(map(len, split)) - min(map(len, split)) <= 1


def test_every_program_of_every_stage_is_a_module_with_a_ready_file(tmp_path: Path) -> None:
    for cloud in ("embedded", "moto"):
        built = programs(tmp_path, cloud=cloud)
        for stage in built.stages():
            for name in stage:
                command = built.program(name, READY).command
                assert command[:2] == (sys.executable, "-m")
                assert command[-2:] == ("--ready-file", str(tmp_path / "ready" / f"{name}.json"))


def test_moto_needs_its_bridge_before_anything_is_deployed(tmp_path: Path) -> None:
    stages = programs(tmp_path, cloud="moto").stages()
    assert stages.index(("bridge",)) < stages.index(("orchestrator", "console", "collector"))
    assert not any("bridge" in stage for stage in programs(tmp_path).stages())


def test_only_clients_of_the_cloud_get_its_address(tmp_path: Path) -> None:
    built = programs(tmp_path)
    orchestrator = built.program("orchestrator", READY).environment
    assert orchestrator["AWS_ENDPOINT_URL"] == "http://127.0.0.1:4566"
    assert "AWS_ENDPOINT_URL" not in built.program("gpu-a", READY).environment


def test_no_account_of_the_user_reaches_the_programs(tmp_path: Path) -> None:
    outer = {
        "AWS_PROFILE": "production",
        "AWS_ACCESS_KEY_ID": "AKIA",
        "LOCALSTACK_HOST": "x:1",
        "https_proxy": "http://proxy:3128",
        "PATH": "/bin",
        "ORCHGPU_TIME_SCALE": "0.05",
    }
    kept = base_environment(outer, Home(tmp_path), Path("/usr/lib/site-packages"))
    assert kept == {
        "PATH": "/bin",
        "ORCHGPU_TIME_SCALE": "0.05",
        "TMPDIR": str(tmp_path / "tmp"),
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }


def test_outside_an_installation_programs_find_our_packages(tmp_path: Path) -> None:
    kept = base_environment({"PYTHONPATH": "/x"}, Home(tmp_path), Path("/checkout"))
    assert kept["PYTHONPATH"] == "/checkout:/x"


@pytest.mark.parametrize("name", ["cloud", "scheduler", "gpu-a", "gpu-b", "orchestrator"])
def test_golden_commands_name_no_path_outside_the_home(tmp_path: Path, name: str) -> None:
    command = programs(tmp_path / "home").program(name, READY).command[1:]
    paths = [argument for argument in command if argument.startswith("/")]
    assert paths
    assert all(path.startswith(str(tmp_path / "home")) for path in paths)


def test_a_cloud_that_verifies_gives_its_keys_to_the_programs_that_use_it(tmp_path: Path) -> None:
    built = programs(tmp_path, verify_signatures=True)
    assert "--verify-signatures" in built.program("cloud", READY).command
    keys = {"access_key": "LKIA", "secret_key": "secret"}
    ready: dict[str, dict[str, object]] = {
        **READY,
        "cloud": {**READY["cloud"], "credentials": keys},
    }
    found = built.program("orchestrator", ready).environment
    assert (found["AWS_ACCESS_KEY_ID"], found["AWS_SECRET_ACCESS_KEY"]) == ("LKIA", "secret")
    assert "--verify-signatures" not in programs(tmp_path).program("cloud", READY).command


def values_of(command: tuple[str, ...], option: str) -> list[str]:
    """The values of an option in a command."""
    return [command[at + 1] for at, word in enumerate(command) if word == option]


@pytest.mark.parametrize("name", ["gpu-a", "gpu-b"])
def test_every_host_has_the_space_for_data_and_images(tmp_path: Path, name: str) -> None:
    given = programs(tmp_path, data_space_gib=1.5, images_mib=4096).program(name, READY).command
    assert values_of(given, "--data-space") == ["1.5"]
    assert values_of(given, "--images-mib") == ["4096"]


@pytest.mark.parametrize(
    ("settings", "program", "option", "values"),
    [
        ({}, "gpu-a", "--scheduler", ["127.0.0.1:4700"]),
        ({}, "gpu-a", "--cpus", ["0"]),
        ({}, "gpu-b", "--cpus", ["1"]),
        ({}, "gpu-b", "--cpus-shared-with", []),
        ({"cores": (3,)}, "gpu-b", "--cpus", ["3"]),
        ({"cores": (3,)}, "gpu-b", "--cpus-shared-with", ["gpu-a"]),
        ({"data": {"p": "/p.fasta"}}, "gpu-a", "--data", ["p=/p.fasta"]),
        ({"middlewares": {"rcuda": "/rCUDAd"}}, "gpu-a", "--middleware", ["rcuda=/rCUDAd"]),
        ({"middlewares": {"rcuda": "/rCUDAd"}}, "gpu-b", "--middleware", ["rcuda=/rCUDAd"]),
        (
            {"programs": {"b": "/b {e}", "a": "/a"}},
            "gpu-a",
            "--program",
            ["a=/a", "b=/b {e}"],
        ),
        (
            {"programs": {"b": "/b {e}", "a": "/a"}},
            "gpu-b",
            "--program",
            ["a=/a", "b=/b {e}"],
        ),
        ({"emulate": "/devices.yaml"}, "gpu-a", "--emulate", ["/devices.yaml"]),
        ({"emulate": "/devices.yaml"}, "gpu-b", "--emulate", []),
        ({"weather": "aws:seed=1"}, "cloud", "--weather", ["aws:seed=1"]),
        ({}, "cloud", "--weather", []),
        ({"cloud": "moto", "weather": "aws:seed=1"}, "cloud", "--weather", []),
        ({"allowed_hosts": ("a.x", "b.x")}, "cloud", "--allow-host", ["a.x", "b.x"]),
        ({}, "cloud", "--allow-host", []),
    ],
)
def test_a_setting_becomes_an_option_of_its_programs(
    tmp_path: Path, settings: dict[str, Any], program: str, option: str, values: list[str]
) -> None:
    assert (
        values_of(programs(tmp_path, **settings).program(program, READY).command, option) == values
    )
