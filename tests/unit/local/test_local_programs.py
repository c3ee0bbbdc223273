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


def test_every_host_gets_the_programs(tmp_path: Path) -> None:
    built = programs(tmp_path, programs={"blast": "/usr/bin/blastp -evalue {e}", "a": "/bin/cat"})
    for host in ("gpu-a", "gpu-b"):
        command = built.program(host, READY).command
        given = [command[at + 1] for at, word in enumerate(command) if word == "--program"]
        assert given == ["a=/bin/cat", "blast=/usr/bin/blastp -evalue {e}"]


def test_moto_needs_its_bridge_before_anything_is_deployed(tmp_path: Path) -> None:
    stages = programs(tmp_path, cloud="moto").stages()
    assert stages.index(("bridge",)) < stages.index(("orchestrator", "console", "collector"))
    assert not any("bridge" in stage for stage in programs(tmp_path).stages())


def test_hosts_get_their_cores_and_data(tmp_path: Path) -> None:
    built = programs(tmp_path, data={"proteins": "/data/p.fasta"})
    first = built.program("gpu-a", READY).command
    second = built.program("gpu-b", READY).command
    assert first[first.index("--cpus") + 1] == "0"
    assert second[second.index("--cpus") + 1] == "1"
    assert first[first.index("--data") + 1] == "proteins=/data/p.fasta"
    assert first[first.index("--scheduler") + 1] == "127.0.0.1:4700"


def test_only_the_embedded_cloud_gets_weather(tmp_path: Path) -> None:
    command = programs(tmp_path, weather="aws:seed=1").program("cloud", READY).command
    assert command[command.index("--weather") + 1] == "aws:seed=1"
    for settings in ({}, {"cloud": "moto", "weather": "aws:seed=1"}):
        assert "--weather" not in programs(tmp_path, **settings).program("cloud", READY).command


def test_every_host_offers_the_middlewares(tmp_path: Path) -> None:
    built = programs(tmp_path, middlewares={"rcuda": "/opt/rCUDAd"})
    for host in ("gpu-a", "gpu-b"):
        command = built.program(host, READY).command
        assert command[command.index("--middleware") + 1] == "rcuda=/opt/rCUDAd"


def test_hosts_that_share_cores_name_each_other(tmp_path: Path) -> None:
    command = programs(tmp_path, cores=(3,)).program("gpu-b", READY).command
    assert command[command.index("--cpus") + 1] == "3"
    assert command[command.index("--cpus-shared-with") + 1] == "gpu-a"
    assert "--cpus-shared-with" not in programs(tmp_path).program("gpu-b", READY).command


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
    built = programs(tmp_path, verify_signatures=True, allowed_hosts=("a.example", "b.example"))
    command = built.program("cloud", READY).command
    assert "--verify-signatures" in command
    assert [command[i + 1] for i, p in enumerate(command) if p == "--allow-host"] == [
        "a.example",
        "b.example",
    ]
    keys = {"access_key": "LKIA", "secret_key": "secret"}
    ready: dict[str, dict[str, object]] = {
        **READY,
        "cloud": {**READY["cloud"], "credentials": keys},
    }
    found = built.program("orchestrator", ready).environment
    assert (found["AWS_ACCESS_KEY_ID"], found["AWS_SECRET_ACCESS_KEY"]) == ("LKIA", "secret")
    plain = programs(tmp_path).program("cloud", READY).command
    assert not {"--verify-signatures", "--allow-host"} & set(plain)


def test_the_first_host_has_all_emulated_devices(tmp_path: Path) -> None:
    file = "/data/devices.yaml"
    built = programs(tmp_path, emulate=file)
    first, second = (built.program(name, READY).command for name in ("gpu-a", "gpu-b"))
    assert first[first.index("--emulate") + 1] == file
    assert "--emulate" not in second
