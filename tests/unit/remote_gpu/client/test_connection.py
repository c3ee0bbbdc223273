"""The connection of an envelope: strict decoding, with the fault in the error."""

from __future__ import annotations

import contextlib
import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corekit.budget import Budget
from remote_gpu.client import Lane, Refusal, Refused, Session, connect
from remote_gpu.client.reply import connection_of
from remote_gpu.client.transport import handshake
from remote_gpu.wire.connection import CONNECTION_VARIABLE, SESSION_VARIABLE, parse_access
from remote_gpu.wire.errors import WireError
from remote_gpu.wire.variables import allowed_variables, filled_variables

GOOD: dict[str, Any] = {
    "middleware": "builtin",
    "lease": "lease-1",
    "fence": 12,
    "hosts": [
        {
            "host": "gpu-a",
            "gateway": "127.0.0.1:4711",
            "secret": "ab" * 32,
            "devices": [{"index": 0, "kind": "cpu", "model": "x", "memory_mib": 2048}],
        }
    ],
}


def changed(path: list[str | int], value: object) -> dict[str, Any]:
    copied = copy.deepcopy(GOOD)
    place: Any = copied
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return copied


def test_a_valid_one_is_read() -> None:
    access = parse_access(GOOD)
    assert access.hosts[0].address == ("127.0.0.1", 4711)
    assert access.devices[0][1].memory_mib == 2048
    assert parse_access(access.to_json()) == access


@pytest.mark.parametrize(
    "bad",
    [
        None,
        5,
        "x",
        "{}",
        [],
        {},
        changed(["lease"], 5),
        changed(["fence"], -1),
        changed(["fence"], True),
        changed(["hosts"], []),
        changed(["hosts"], [GOOD["hosts"][0]] * 65),
        changed(["hosts", 0, "gateway"], "nowhere"),
        changed(["hosts", 0, "gateway"], "a:99999"),
        changed(["hosts", 0, "gateway"], ":80"),
        changed(["hosts", 0, "secret"], "ab"),
        changed(["hosts", 0, "secret"], "zz" * 32),
        changed(["hosts", 0, "devices"], {}),
        changed(["hosts", 0, "devices", 0], 5),
        changed(["hosts", 0, "devices", 0, "index"], "0"),
    ],
)
def test_an_invalid_connection_is_refused_before_dialling(bad: Any) -> None:
    with pytest.raises(WireError):
        parse_access(bad)
    with pytest.raises(Refused) as refused:
        Session.open(bad, 1.0)
    assert refused.value.code == Refusal.PROTOCOL


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=70),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
PLACES = st.sampled_from(
    [
        ["lease"],
        ["fence"],
        ["session"],
        ["hosts"],
        ["hosts", 0],
        ["hosts", 0, "gateway"],
        ["hosts", 0, "secret"],
        ["hosts", 0, "unix"],
        ["hosts", 0, "devices"],
        ["hosts", 0, "devices", 0],
        ["hosts", 0, "devices", 0, "memory_mib"],
    ]
)


@settings(max_examples=80)
@given(PLACES, JSON, st.text(max_size=30))
def test_any_token_is_a_connection_or_a_wire_error(
    path: list[str | int], value: object, text: str
) -> None:
    for token in (value, text, changed(path, value), json.dumps(changed(path, value))):
        with contextlib.suppress(WireError):
            access = parse_access(token)
            assert parse_access(access.to_json()) == access


def test_an_environment_without_a_lease_is_refused() -> None:
    with pytest.raises(Refused, match="Local") as refused:
        connect({})
    assert refused.value.code == Refusal.NOT_INSTALLED


def test_a_broken_environment_names_its_variable() -> None:
    with pytest.raises(Refused, match=SESSION_VARIABLE):
        connect({SESSION_VARIABLE: "{"})
    with pytest.raises(Refused, match="PROTOCOL"):
        connect({CONNECTION_VARIABLE: json.dumps({"lease": 1})})


def test_a_device_outside_of_the_lease_is_refused() -> None:
    with pytest.raises(Refused, match="no device 3"):
        Lane.open(parse_access(GOOD), 3)


@pytest.mark.parametrize(
    ("middleware", "variables"),
    [
        ("builtin", {"PATH": "/tmp"}),
        ("rcuda", {"LD_PRELOAD": "/tmp/x.so"}),
        ("rcuda", {"RCUDA_DEVICE_0": "127.0.0.1;rm -rf /@{0}:0"}),
        ("rcuda", {"RCUDA_DEVICE_0": "127.0.0.1@{0}:0\n"}),
        ("rcuda", {"RCUDA_DEVICE_0": "10.0.0.7@{0}:0"}),
        ("lupine", {"LUPINE_SERVER": "127.0.0.1:9001"}),
        ("gvirtus", {"GVIRTUS_CONFIG": "/etc/passwd"}),
        ("rcuda", {"RCUDA_DEVICE_COUNT": "0"}),
        ("rcuda", {"RCUDA_DEVICE_COUNT_X": "1"}),
        ("rcuda", {"RCUDA_DEVICE_٣": "127.0.0.1@{0}:0"}),
        ("cricket", {"CRICKET_RPCID": "٣"}),
        ("unknown", {}),
    ],
)
def test_a_variable_that_is_not_on_the_list_is_refused(
    middleware: str, variables: dict[str, str]
) -> None:
    with pytest.raises(WireError):
        allowed_variables(middleware, variables)


def test_allowed_variables_pass() -> None:
    variables = {
        "RCUDA_DEVICE_COUNT": "2",
        "RCUDA_DEVICE_0": "127.0.0.1@{0}:0",
        "RCUDA_DEVICE_1": "127.0.0.1@{1}:1",
        "RCUDAPROTO": "TCP",
    }
    assert allowed_variables("rcuda", variables) == variables
    assert allowed_variables("builtin", {}) == {}
    filled = filled_variables("rcuda", variables, (40001, 40002), "")
    assert filled["RCUDA_DEVICE_1"] == "127.0.0.1@40002:1"
    with pytest.raises(WireError, match="is not a host of the lease"):
        filled_variables("rcuda", variables, (40001,), "")


def test_the_client_loads_the_standard_library_only_and_little_of_it() -> None:
    code = (
        "import sys; before = set(sys.modules); import remote_gpu.client;"
        "print(*set(sys.modules) - before)"
    )
    root = Path(__file__).resolve().parents[4]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    ours = {name for name in loaded if name.partition(".")[0] == "remote_gpu"}
    needed = """affinity content_ids device devices graph host_data local resources transport
        transport.handshake transport.prompt transport.readiness transport.session uncaught uses"""
    of_wire = "channel connection errors frames graphs proof segment uses"
    assert ours - {"remote_gpu", "remote_gpu.client", "remote_gpu.wire"} == {
        *(f"remote_gpu.client.{name}" for name in needed.split()),
        *(f"remote_gpu.wire.{name}" for name in of_wire.split()),
    }, "TLS, shared memory and asyncio cost those who use them"
    foreign = {name.partition(".")[0] for name in loaded - ours}
    assert foreign <= sys.stdlib_module_names
    slow = "asyncio concurrent email http logging mmap pathlib ssl subprocess tempfile urllib"
    assert not foreign.intersection(slow.split())


def test_the_clients_timeouts_are_those_of_the_budget() -> None:
    budget = Budget()
    assert (
        budget.gateway_dial_s,
        budget.gateway_answer_s,
        budget.gateway_door_s,
    ) == (handshake.DIAL_S, handshake.ANSWER_S, handshake.RELAY_S)
    host_s = budget.install_wait_s + budget.worker_cut_s + budget.handshake_s
    assert host_s <= handshake.ANSWER_S < budget.session_silence_s


GRANTED = "SSGM_ERROR=0;JOB=lease-1;RCUDA_DEVICE_COUNT=1;RCUDA_DEVICE_0=127.0.0.1@4711:0"


def test_a_classic_reply_becomes_a_connection() -> None:
    access = parse_access(connection_of(GRANTED))
    assert (access.lease, access.hosts[0].gateway) == ("lease-1", "127.0.0.1:4711")


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("COUNT=1", "COUNT=two", "PROTOCOL"),
        ("COUNT=1", "COUNT=-1", "PROTOCOL"),
        ("COUNT=1", "COUNT=2", "PROTOCOL"),
        ("@4711:0", "", "PROTOCOL"),
        ("ERROR=0", "ERROR=1", "NOT_INSTALLED"),
        ("COUNT=1", "COUNT=0", "NOT_INSTALLED"),
    ],
)
def test_a_malformed_classic_reply_is_refused(old: str, new: str, code: str) -> None:
    with pytest.raises(Refused, match=code):
        connection_of(GRANTED.replace(old, new))
