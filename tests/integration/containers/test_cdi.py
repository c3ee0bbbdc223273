"""Devices of a container by CDI: a file as NVIDIA's tools write it, for a device of the test."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from corekit.ids import DeviceId, HostId
from gpu_scheduler.model import DeviceKind, Share
from remote_gpu.host.containers.cards import FOLDERS
from tests.integration.containers.conftest import Hosted
from tests.leaks import no_task_left

pytestmark = pytest.mark.asyncio

CARD = "GPU-of-the-tests"


@pytest.fixture
def card(hosted: Hosted, tmp_path: Path) -> Iterator[str]:
    """The path that a device file, named by a file of CDI, has in containers."""
    (tmp_path / "nodes").mkdir()
    folder, node, inside = FOLDERS[-1], tmp_path / "nodes" / "card", "/dev/card-of-the-tests"
    made = not folder.exists()
    spec = folder / f"orchgpu-tests-{os.getpid()}.json"
    edits = {"deviceNodes": [{"path": inside, "hostPath": str(node)}], "env": ["CARD=given"]}
    devices = [{"name": CARD, "containerEdits": edits}]
    try:
        os.mknod(node, stat.S_IFCHR | 0o666, os.stat("/dev/zero").st_rdev)
        folder.mkdir(exist_ok=True)
        spec.write_text(
            json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices})
        )
    except PermissionError as error:
        pytest.skip(f"NOT TESTED: devices by CDI, needs root; {error}")
    yield inside
    spec.unlink()
    if made:
        folder.rmdir()


def share(device: str) -> Share:
    return Share(
        host=HostId("h"),
        device=DeviceId(device),
        index=0,
        kind=DeviceKind("cuda"),
        model="m",
        memory_mib=1,
        compute_guarantee_pct=100,
        compute_limit_pct=100,
        exclusive=True,
    )


@no_task_left
async def test_a_container_gets_the_card_of_its_lease_by_cdi(hosted: Hosted, card: str) -> None:
    order = hosted.order("list", "/dev", ",", "write", card, ",", "env")
    async with hosted.run(order, share(CARD)) as one:
        listed, written, variables = (await hosted.whole(one)).parts
    assert Path(card).name in listed.splitlines()
    assert written == f"{card}: done\n"
    assert "CARD=given" in variables.splitlines()
    async with hosted.run(order) as one:  # a lease without the card
        listed, written, variables = (await hosted.whole(one)).parts
    assert Path(card).name not in listed.splitlines()
    assert "done" not in written
    assert "CARD=given" not in variables.splitlines()
