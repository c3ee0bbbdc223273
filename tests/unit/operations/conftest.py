"""Devices with memory of their own: this machine's CPU used as a card, and NVIDIA's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

import pytest

from remote_gpu.worker.backends.drivers import working_kinds
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context, Warm
from tests.drivers import needs_cpu_driver, on_opencl

#: A context on the device, with a quota of 1 GiB or the one given.
Card: TypeAlias = Callable[..., Context]

_WITHOUT_CARD = "cuda" not in working_kinds()
_CARD = [
    pytest.mark.gpu,
    pytest.mark.skipif(_WITHOUT_CARD, reason="no NVIDIA GPU answers on this machine"),
]


@functools.cache
def _warm() -> Warm:
    return Warm()


def _on_cuda(quota: Quota | None = None) -> Context:
    return Context(kind="cuda", warm=_warm(), quota=quota or Quota(1 << 30))


@pytest.fixture(
    params=[
        pytest.param(on_opencl, marks=needs_cpu_driver, id="opencl"),
        pytest.param(_on_cuda, marks=_CARD, id="cuda"),
    ]
)
def card(request: pytest.FixtureRequest) -> Card:
    """A kind of device that has own kernels."""
    found: Card = request.param
    return found
