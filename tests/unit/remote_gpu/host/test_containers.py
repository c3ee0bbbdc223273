"""The pure parts of containers: podman's command line, cards, names of images, eviction."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.names import ImageArchive, archive_of
from remote_gpu.host.containers.cards import cards
from remote_gpu.host.containers.command import (
    Cards,
    Container,
    Runtime,
    devices_of,
    run_words,
    variables_file,
)
from remote_gpu.host.containers.images import to_evict

ROOT = Runtime(
    podman=Path("/usr/bin/podman"), version="4.3.1", store=Path("/s/store"), run=Path("/run/o")
)
CONTAINER = Container(
    lease="l-1",
    image="abc",
    user=2_000_000_007,
    group=2_000_000_009,
    folder=Path("/s/scratch/t-image"),
    workdir="/s/scratch/t-image/orchgpu-run-1",
    variables=Path("/s/containers/run-1/variables"),
    memory_mib=512,
    timeout_s=930.4,
    data={"weights": Path("/s/data-views/t/0a")},
)
GOLDEN = """
run
--name=orchgpu-l-1
--label=orchgpu.lease=l-1
--pull=never
--network=none
--http-proxy=false
--no-hosts
--hostname=run
--read-only
--read-only-tmpfs=false
--tmpfs=/tmp:rw,nosuid,nodev,mode=1777,size=256m
--shm-size=64m
--volume=/s/scratch/t-image:/s/scratch/t-image:rw,nosuid,nodev
--volume=/s/data-views/t/0a:/mnt/data/weights:ro,nosuid,nodev
--image-volume=ignore
--workdir=/s/scratch/t-image/orchgpu-run-1
--memory=512m
--memory-swap=512m
--pids-limit=1024
--ulimit=nofile=4096:4096
--ulimit=nproc=1024:1024
--ulimit=core=0:0
--cap-drop=all
--security-opt=no-new-privileges
--user=2000000007:2000000009
--cgroupns=private
--ipc=private
--init
--systemd=false
--sdnotify=ignore
--no-healthcheck
--log-driver=none
--timeout=930
--env-file=/s/containers/run-1/variables
abc
""".strip().splitlines()


def test_the_command_line_of_a_container() -> None:
    assert run_words(ROOT, CONTAINER) == GOLDEN
    assert ROOT.line("rm") == [
        "/usr/bin/podman",
        "--root=/s/store",
        "--runroot=/run/o",
        "--tmpdir=/run/o/libpod",
        "rm",
    ]
    assert "--runtime=runc" in replace(ROOT, runtime="runc").line()


@pytest.mark.parametrize(
    ("runtime", "container", "added", "removed"),
    [
        (replace(ROOT, rootless=True), CONTAINER, {"--userns=keep-id"}, set()),
        (
            ROOT,
            replace(CONTAINER, network=True),
            {"--network=slirp4netns"},
            {"--network=none"},
        ),
        (
            ROOT,
            replace(CONTAINER, command=("/bin/sh", "-c", 'echo "$A"')),
            {"--entrypoint=" + json.dumps(["/bin/sh", "-c", 'echo "$A"'])},
            set(),
        ),
        (
            ROOT,
            replace(CONTAINER, devices=("nvidia.com/gpu=GPU-1", "/dev/dri")),
            {"--device=nvidia.com/gpu=GPU-1", "--device=/dev/dri"},
            set(),
        ),
    ],
)
def test_each_choice_changes_its_own_options(
    runtime: Runtime, container: Container, added: set[str], removed: set[str]
) -> None:
    words = run_words(runtime, container)
    assert set(words) - set(GOLDEN) == added
    assert set(GOLDEN) - set(words) == removed
    assert words[-1] == container.image


def test_variables_are_lines_that_podman_reads() -> None:
    assert variables_file({"A": "1", "EVENT": '{"a": "# *"}', "E": ""}) == (
        'A=1\nEVENT={"a": "# *"}\nE=\n'
    )


@pytest.mark.parametrize(
    "variables", [{"A": "1\nB=2"}, {"A": "1\r"}, {"A B": "1"}, {"*": "1"}, {"A": "x" * 60_001}]
)
def test_variables_that_podman_cannot_read_are_refused(variables: dict[str, str]) -> None:
    with pytest.raises(AppError) as refused:
        variables_file(variables)
    assert refused.value.code is ErrorCode.INVALID


_CARDS = Cards(
    cdi=frozenset({"nvidia.com/gpu=GPU-1", "nvidia.com/gpu=MIG-1"}),
    minors={"GPU-1": 0, "GPU-2": 3},
    nodes=frozenset({"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/dri", "/dev/nvidia0"}),
)


@pytest.mark.parametrize(
    ("shares", "devices"),
    [
        ({"h/cpu0": "cpu"}, ()),
        ({"GPU-1": "cuda", "MIG-1": "cuda"}, ("nvidia.com/gpu=GPU-1", "nvidia.com/gpu=MIG-1")),
        ({"GPU-2": "cuda"}, ("/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm")),
        ({"x": "opencl", "y": "opencl"}, ("/dev/dri",)),
    ],
)
def test_a_lease_gets_its_own_cards(shares: dict[str, str], devices: tuple[str, ...]) -> None:
    assert devices_of(_CARDS, shares) == devices


def test_a_card_that_no_container_can_get_is_refused() -> None:
    with pytest.raises(AppError, match="nvidia-ctk cdi generate"):
        devices_of(_CARDS, {"MIG-2": "cuda"})


def test_cards_are_read_from_cdi_and_the_driver(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cdi, gpus, dev = tmp_path / "cdi", tmp_path / "gpus", tmp_path / "dev"
    for folder in (cdi, gpus / "0000:01:00.0", dev):
        folder.mkdir(parents=True)
    (cdi / "nvidia.yaml").write_text(
        'cdiVersion: "0.5.0"\nkind: nvidia.com/gpu\n'
        'devices:\n- name: "0"\n  containerEdits: {}\n- name: GPU-1\n'
    )
    (cdi / "other.json").write_text(
        json.dumps({"kind": "example.com/nic", "devices": [{"name": "n"}]})
    )
    (cdi / "torn.json").write_text("{")
    (gpus / "0000:01:00.0" / "information").write_text(
        "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-1\nDevice Minor: \t 2\n"
    )
    (dev / "nvidiactl").touch()
    found = cards([cdi, tmp_path / "absent"], gpus, dev)
    assert found.cdi == {"nvidia.com/gpu=0", "nvidia.com/gpu=GPU-1", "example.com/nic=n"}
    assert found.minors == {"GPU-1": 2}
    assert found.nodes == {"/dev/nvidiactl"}
    assert "torn.json" in str(caplog.records[0].__dict__["file"])


@pytest.mark.parametrize(
    ("reference", "archive"),
    [
        (f"docker.io/library/python@sha256:{64 * 'a'}", None),
        (f"localhost:5000/a/b:1@sha256:{64 * 'a'}", None),
        (f"s3://bucket/a/b.tar#sha256:{64 * 'b'}", ImageArchive("bucket", "a/b.tar", 64 * "b")),
    ],
)
def test_images_are_named_with_their_digest(reference: str, archive: ImageArchive | None) -> None:
    assert archive_of(reference) == archive


@pytest.mark.parametrize(
    "reference",
    [
        "python",
        "python:3.11",
        f"python@sha256:{63 * 'a'}",
        f"--root=/@sha256:{64 * 'a'}",
        "s3://bucket/a.tar",
        f"s3://bucket/#sha256:{64 * 'b'}",
        f"s3://bucket/*#sha256:{64 * 'b'}",
        f"docker-archive:/etc@sha256:{64 * 'a'} x",
    ],
)
def test_names_without_a_digest_are_refused(reference: str) -> None:
    with pytest.raises(AppError, match="write name@sha256"):
        archive_of(reference)


def test_the_least_recently_used_images_go_first() -> None:
    sizes = {"a": 10, "b": 20, "c": 30, "d": 5}
    used_s = {"a": 3.0, "b": 1.0, "c": 2.0}  # d: never, by this gpud
    assert to_evict(sizes, used_s, {"c"}, 65) == []
    assert to_evict(sizes, used_s, {"c"}, 60) == ["d"]
    assert to_evict(sizes, used_s, {"c"}, 59) == ["d", "b"]
    assert to_evict(sizes, used_s, {"c"}, 0) == ["d", "b", "a"]


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 50)),
    st.sets(st.sampled_from("abcdef")),
    st.integers(0, 200),
)
def test_no_image_in_use_goes_and_none_goes_without_need(
    sizes: dict[str, int], in_use: set[str], space: int
) -> None:
    gone = to_evict(sizes, {}, in_use, space)
    assert not in_use & set(gone)
    left = {name: size for name, size in sizes.items() if name not in gone}
    assert sum(left.values()) <= space or set(left) <= in_use
    if gone:
        assert sum(left.values()) + sizes[gone[-1]] > space
