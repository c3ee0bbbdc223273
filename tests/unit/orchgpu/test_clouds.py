"""The clouds that an orchestrator can serve are packages, found by their name."""

from __future__ import annotations

from pathlib import Path

import pytest

from corekit.errors import AppError
from orchgpu.adapters.clouds import open_cloud, provider
from orchgpu.replica.startup import OrchestratorSettings


def test_the_cloud_of_the_settings_is_a_package_of_the_adapters() -> None:
    cloud = OrchestratorSettings(scheduler="127.0.0.1:1").cloud
    assert open_cloud(cloud)
    assert getattr(provider(cloud), "__name__", "") == f"orchgpu.adapters.{cloud}.commands"


def test_an_unknown_cloud_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(AppError, match="unknown cloud 'nimbus'; known are aws"):
        open_cloud("nimbus")


def test_a_cloud_of_another_package_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "nimbus_cloud"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "commands.py").write_text("def connect(): ...\n")
    about = tmp_path / "nimbus_cloud-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: nimbus-cloud\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[orchgpu.clouds]\nnimbus = nimbus_cloud\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert getattr(provider("nimbus"), "__name__", "") == "nimbus_cloud.commands"
    with pytest.raises(AppError, match="unknown cloud 'nimbu'; did you mean 'nimbus'"):
        provider("nimbu")
