"""The offers file."""

import re

import pytest

from corekit.errors import AppError
from orchgpu.fleet.core.model import PolicyName
from orchgpu.fleet.offers import parse_offers
from tests.fleet_world import FleetWorld, offer

TEXT = """\
offers:
  - name: a10g
    kind: cuda
    model: NVIDIA A10G
    devices: 4
    memory: 24GiB
    usd_per_h: 5.67
    spot: true
    group: gpu-a10g
    max: 3
    idle_s: 10min
  - {name: cpu, kind: cpu, memory: 8GiB, min: 1, max: 2, buffer: 1, start_s: 20}
usd_per_hour_max: 20
policy: forecast
"""


def test_a_file_is_read() -> None:
    offers, warnings = parse_offers(TEXT, "offers.yaml")
    first, second = offers.offers
    assert warnings == ()
    assert (first.at_port, first.devices, first.memory_mib) == ("gpu-a10g", 4, 24 * 1024)
    assert (first.idle_s, first.spot, second.at_port, second.start_s) == (600.0, True, "cpu", 20.0)
    assert offers.rules.usd_per_hour_max == 20.0
    assert offers.rules.policy is PolicyName.FORECAST


def test_the_longest_name_and_group_of_an_offer_that_moves_are_a_pool() -> None:
    world = FleetWorld((offer(64 * "n", group=191 * "g", min=1),))
    world.run(100.0)
    world.offers = (offer(64 * "n", group="other", min=1),)
    world.run(100.0)
    assert world.count("other") == world.count() == 1


def test_keys_of_a_newer_version_are_ignored_with_a_warning() -> None:
    text = TEXT.replace("spot:", "spott:") + "regions: [a]\n"
    offers, warnings = parse_offers(text, "offers.yaml")
    assert not offers.offers[0].spot
    assert warnings == (
        "offers.yaml:15:1: warning: unknown key 'regions' is ignored",
        "offers.yaml:8:5: warning: unknown key 'spott' is ignored; did you mean 'spot'?",
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max: 3", "max: x", "offers.yaml:10:10: error: offers[0].max: "),
        ("    max: 3\n", "", "offers.yaml:2:5: error: offers[0]: missing key 'max'"),
        ("min: 1", "min: 3", "offers.yaml:12:5: error: offers[1]: min 3 must not exceed max 2"),
        ("name: cpu", "name: a10g", "offers.yaml:1:1: error: two offers have the name 'a10g'"),
        ("kind: cuda", "kind: gpu", "offers.yaml:3:11: error: offers[0].kind: "),
        (
            "gpu-a10g",
            192 * "g",
            f"offers.yaml:9:12: error: offers[0].group: '{37 * 'g'}...' is not a name of 1 to 191",
        ),
        ("policy: forecast", "policy: [", "offers.yaml:"),
    ],
)
def test_an_error_names_its_place(old: str, new: str, message: str) -> None:
    with pytest.raises(AppError, match=re.escape(message)):
        parse_offers(TEXT.replace(old, new), "offers.yaml")
