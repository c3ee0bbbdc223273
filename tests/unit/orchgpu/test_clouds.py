"""The clouds that an orchestrator can serve are packages, found by their name."""

from __future__ import annotations

import pytest

from corekit.errors import AppError
from orchgpu.adapters.clouds import names, open_cloud
from orchgpu.settings import OrchestratorSettings


def test_the_cloud_of_the_settings_is_a_package_of_the_adapters() -> None:
    assert OrchestratorSettings(scheduler="127.0.0.1:1").cloud in names()


def test_an_unknown_cloud_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(AppError, match="unknown cloud 'nimbus'; known are aws"):
        open_cloud("nimbus")
