"""Each parameter has a sentence, and the page about the scheduler has the same one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpu_scheduler.parameter_meanings import MEANINGS, meaning_of
from gpu_scheduler.parameters import NAMES

PAGE = Path(__file__).resolve().parents[3] / "docs/scheduler.md"
OF_POLICIES = "policy.POLICY.PARAMETER"


def test_every_parameter_has_one_and_the_page_has_the_same() -> None:
    assert sorted(MEANINGS) == sorted(set(NAMES) - {OF_POLICIES})
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (.*?) \| [^|]+ \|$", PAGE.read_text(), re.MULTILINE))
    missing = {name: text for name, text in MEANINGS.items() if text not in rows.get(name, "")}
    assert missing.keys() <= {"policy"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("weight.lab", MEANINGS["weight.TENANT"]),
        ("quota.lab.of.a.name.devices", MEANINGS["quota.TENANT.devices"]),
        ("quota.*.newer", ""),
        ("newer_s", ""),
    ],
)
def test_parameters_of_tenants_share_theirs(name: str, text: str) -> None:
    assert meaning_of(name) == text
