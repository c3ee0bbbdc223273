"""One live system per module: starting one costs seconds, and tests use functions of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.live import Live, live_system


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """All daemons but the orchestrator; each test starts the orchestrators it needs."""
    with live_system(tmp_path_factory.mktemp("live")) as system:
        system.start_all(orchestrators=())
        yield system
