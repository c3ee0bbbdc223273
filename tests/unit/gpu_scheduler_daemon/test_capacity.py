"""The file of `ssgmd --capacity`, and requests that only hosts to come could serve."""

import re
from pathlib import Path

import pytest

from corekit.errors import AppError
from gpu_scheduler.core import events as on
from gpu_scheduler.daemon.capacity import declared_devices
from gpu_scheduler.model import COUNT_MAX, DeviceKind, Placement, Request
from gpu_scheduler.protocol.answers import Outcome
from tests.scheduler_world import World

OFFERS = """\
offers:
  - {name: a10g, kind: cuda, model: NVIDIA A10G, devices: 4, memory: 24GiB, usd_per_h: 5, max: 2}
usd_per_hour_max: 10
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "offers.yaml"
    file.write_text(OFFERS)
    return file


def test_offers_declare_the_devices_of_all_hosts(file: Path) -> None:
    found = declared_devices(file)
    assert [one.id for one in found][3:5] == ["pool/a10g/0/3", "pool/a10g/1/0"]
    assert {(one.kind, one.model, one.memory_mib) for one in found} == {
        (DeviceKind.CUDA, "NVIDIA A10G", 24 * 1024)
    }
    file.write_text(OFFERS.replace("max: 2", "max: 10000"))
    assert COUNT_MAX <= len(declared_devices(file)) < COUNT_MAX + 4


def test_an_inventory_and_offers_may_be_in_one_file(file: Path) -> None:
    file.write_text(OFFERS + "devices:\n  - {kind: cpu, model: C, memory_mib: 8GiB}\n")
    assert declared_devices(file)[0].id == "declared/cpu0"
    assert len(declared_devices(file)) == 9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1", "write `offers:` or `devices:`"),
        ("offers: 3", "`offers` must be a list"),
        ("offers: [{name: a, kind: cuda, memory: 1GiB, max: x}]", r"offers\[0\]: max must be"),
        ("offers: [{name: a, kind: gpu, memory: 1GiB, max: 1}]", r"offers\[0\]"),
        ("offers: [{name: a, kind: cuda, max: 1}]", r"offers\[0\]: memory must be an amount"),
        ("offers: [", "not YAML"),
    ],
)
def test_a_fault_is_named(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(AppError, match=message):
        declared_devices(file)


def test_requests_for_hosts_to_come_wait_and_impossible_ones_are_refused(file: Path) -> None:
    world = World()
    world.handle(on.CapacityDeclared, devices=declared_devices(file))
    on_one = {"kinds": (DeviceKind.CUDA,), "placement": Placement.SAME_HOST}
    for number, (request, outcome) in enumerate(
        (
            (Request(models=("NVIDIA A10G",)), Outcome.WAITING),
            (Request(count=8, kinds=(DeviceKind.CUDA,)), Outcome.WAITING),
            (Request(count=9, kinds=(DeviceKind.CUDA,)), Outcome.IMPOSSIBLE),
            (Request(count=4, **on_one), Outcome.WAITING),  # type: ignore[arg-type]
            (Request(count=5, **on_one), Outcome.IMPOSSIBLE),  # type: ignore[arg-type]
            (Request(memory_mib=30_000), Outcome.IMPOSSIBLE),
        )
    ):
        assert world.reserve(f"r{number}", request, wait=True).outcome is outcome


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("offers: [{kind: cpu, memory: 1GiB, max: 1}]", "offers[0]: name must be a text"),
        ("offers: [{name: a/b, kind: cpu, memory: 1GiB, max: 1}]", "without a slash"),
        ("offers: [{name: a, kind: cpu, memory: 24XB, max: 1}]", "offers[0]: memory: "),
        (
            f"offers: [{', '.join(2 * ['{name: a, kind: cpu, memory: 1GiB, max: 2}'])}]",
            "two offers or devices have the same name",
        ),
    ],
)
def test_a_wrong_offer_names_its_place(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "offers.yaml"
    file.write_text(text)
    with pytest.raises(AppError, match=re.escape(message)):
        declared_devices(file)
