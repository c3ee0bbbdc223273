"""Queue policies are found by a module's presence and by an entry point."""

from __future__ import annotations

import logging
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path, PosixPath

import pytest
from _pytest.logging import LogCaptureFixture
from click.testing import CliRunner

from gpu_scheduler.client.commands.admin_commands import set_parameter
from gpu_scheduler.core import policies
from gpu_scheduler.policy_registry import installed_policies
from simulator import policies as research_policies
from tests.scheduler_world import World

ROOT = Path(__file__).parents[4]
#: A policy as a stranger would write it: the newest request first.
NEWEST_FIRST = """
from gpu_scheduler.core.policies.fifo import Fifo

class NewestFirst(Fifo):
    summary = "the newest request"

POLICY = NewestFirst()
"""


def register(folder: Path, name: str, value: str, module: str = NEWEST_FIRST) -> None:
    """An installed distribution in `folder` with one entry point."""
    (folder / "newest_first.py").write_text(module)
    metadata = folder / "newest_first-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: newest-first\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[orchgpu.policies]\n{name} = {value}\n")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the module path; its modules are not cached."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "newest_first", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


def test_the_policies_of_the_tree_are_found_the_default_first() -> None:
    first, *others = installed_policies()
    assert first == "fifo"
    assert {"backfill", "fair"} <= set(others)


def test_an_entry_point_registers_a_policy(packages: PosixPath) -> None:
    register(packages, "newest", "newest_first:POLICY")
    world = World(policy="newest")
    assert world.policies[world.machine.state.parameters.policy].summary == "the newest request"


def test_an_entry_point_does_not_replace_a_policy_of_the_tree(packages: PosixPath) -> None:
    register(packages, "fair", "newest_first:POLICY")
    assert installed_policies()["fair"].summary.startswith("the tenant")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("newest_first:ABSENT", "AttributeError"),
        ("newest_first:NewestFirst.__name__", "does not derive from `gpu_scheduler.api.Policy`"),
        ("not_there:POLICY", "ModuleNotFoundError"),
    ],
)
def test_a_broken_entry_point_is_left_out_with_a_warning(
    packages: PosixPath, caplog: LogCaptureFixture, value: str, why: str
) -> None:
    register(packages, "newest", value)
    with caplog.at_level(logging.WARNING):
        assert "newest" not in installed_policies()
    assert why in caplog.text


def test_a_module_in_the_folder_is_a_policy(tmp_path: PosixPath) -> None:
    for package in ("corekit", "gpu_scheduler"):
        shutil.copytree(ROOT / package, tmp_path / package)  # with what is compiled already
    (tmp_path / "gpu_scheduler/core/policies/newest.py").write_text(NEWEST_FIRST)
    program = (
        "from gpu_scheduler.policy_registry import installed_policies as found;"
        "from gpu_scheduler.parameters import Parameters, changed;"
        "print(changed(Parameters(), 'policy', 'newest', found()).policy, *found())"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", program], cwd=tmp_path, check=True, capture_output=True
    )
    policy, *installed = done.stdout.decode().split()
    assert policy == "newest"
    assert {"fifo", "newest"} <= set(installed)


def test_the_help_of_ssgm_set_lists_the_installed_policies(packages: PosixPath) -> None:
    register(packages, "newest", "newest_first:POLICY")
    done = CliRunner().invoke(set_parameter, ["--help"])
    listed = done.output.partition("Queue policies installed here: ")[2].partition("\n\n")[0]
    assert {"fifo", "newest"} <= set(" ".join(listed.split()).split(", "))


def test_the_documented_policies_are_those_of_the_registry() -> None:
    page = (ROOT / "docs/explanation/scheduling.md").read_text()
    table = page.partition("| policy | next request |")[2].partition("\n\n")[0]
    documented = dict(re.findall(r"\n\| `([a-z_]+)`[^|]* \| ([^|]+) \|", table))
    paths = [*policies.__path__, *research_policies.__path__]
    own = [module.name for module in pkgutil.iter_modules(paths)]
    summaries = {name: one.summary for name, one in installed_policies().items() if name in own}
    assert documented == summaries
