"""Ports that a program gets back when it starts again."""

from __future__ import annotations

import socket

import pytest

import orchgpu.local.ports as ports_module
from orchgpu.local.ports import fixed_address, fixed_port


def test_ports_differ_are_free_and_lie_below_those_of_outgoing_connections() -> None:
    found = [fixed_port() for _ in range(5)]
    assert len(set(found)) == 5
    assert all(11_000 <= port < 32_000 for port in found)
    with socket.create_server(("127.0.0.1", found[-1])):
        pass


def test_a_port_in_use_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        busy, free = taken.getsockname()[1], fixed_port()
        monkeypatch.setattr(ports_module, "_ports", iter([busy, free]))
        assert fixed_address() == f"127.0.0.1:{free}"
