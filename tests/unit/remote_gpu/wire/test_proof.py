"""The proof: valid for one key, lease, fence, host, session and pair of nonces only."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_gpu.wire.errors import WireError
from remote_gpu.wire.frames import Meta
from remote_gpu.wire.proof import (
    ConnectionRole,
    Hello,
    Proving,
    client_bound,
    client_proof,
    gateway_bound,
    gateway_proof,
    lane_key,
    matches,
)

KEY, OTHER = b"k" * 32, b"o" * 32
NONCE = "0" * 32
HELLO = Hello(
    role=ConnectionRole.SESSION,
    lease="lease-1",
    fence=7,
    host="gpu-a",
    session="a" * 32,
    nonce="b" * 32,
    cap_ms=1000,
)


def test_a_hello_round_trips() -> None:
    assert Hello.from_meta(HELLO.to_meta()) == HELLO


def test_that_a_client_waits_is_beside_its_hello_where_an_older_gateway_ignores_it() -> None:
    waits = dataclasses.replace(HELLO, waits=True)
    assert waits.to_meta() == {**HELLO.to_meta(), "waits": True}
    assert Hello.from_meta(waits.to_meta()) == waits
    assert not Hello.from_meta({**HELLO.to_meta(), "waits": "yes"}).waits
    assert client_proof(KEY, waits, NONCE) == client_proof(KEY, HELLO, NONCE)


@pytest.mark.parametrize("new", [True, False])
def test_the_sandbox_of_a_client_is_beside_its_hello_too(new: bool) -> None:
    known = dataclasses.replace(HELLO, new_sandbox=new)
    assert known.to_meta() == {**HELLO.to_meta(), "new_sandbox": new}
    assert Hello.from_meta(known.to_meta()) == known
    assert Hello.from_meta({**HELLO.to_meta(), "new_sandbox": 1}).new_sandbox is None
    assert client_proof(KEY, known, NONCE) == client_proof(KEY, HELLO, NONCE)


@pytest.mark.parametrize(
    "change",
    [
        {"role": ConnectionRole.LANE},
        {"lease": "lease-2"},
        {"fence": 8},
        {"host": "gpu-b"},
        {"session": "c" * 32},
        {"nonce": "c" * 32},
        {"cap_ms": 1001},
        {"device": 1},
        {"middleware": "lupine"},
        {"port": 1},
    ],
)
def test_every_field_of_the_hello_is_in_the_proof(change: dict[str, Any]) -> None:
    changed = dataclasses.replace(HELLO, **change)
    for proof in (gateway_proof, client_proof):
        assert not matches(proof(KEY, HELLO, NONCE), proof(KEY, changed, NONCE))


def test_a_proof_is_bound_to_key_nonce_and_side() -> None:
    proof = client_proof(KEY, HELLO, NONCE)
    assert matches(proof, client_proof(KEY, HELLO, NONCE))
    assert not matches(proof, client_proof(OTHER, HELLO, NONCE))
    assert not matches(proof, client_proof(KEY, HELLO, "1" * 32))
    assert not matches(proof, gateway_proof(KEY, HELLO, NONCE))  # reflecting it is no proof


def test_the_authority_is_in_every_proof_and_a_connections_key_is_its_own() -> None:
    for proof in (gateway_proof, client_proof):
        assert not matches(proof(KEY, HELLO, NONCE), proof(KEY, HELLO, NONCE, "authority"))
    plain, tls = Proving(KEY, HELLO, NONCE), Proving(KEY, HELLO, NONCE, "authority")
    assert (plain.key, len(tls.key)) == (b"", 32)
    assert tls.key != Proving(KEY, HELLO, "1" * 32, "authority").key
    assert tls.accepts(client_proof(KEY, HELLO, NONCE, "authority"))
    assert not tls.accepts(client_proof(KEY, HELLO, NONCE))
    assert client_bound(tls.key, b"one") != client_bound(tls.key, b"other")
    assert client_bound(tls.key, b"one") != gateway_bound(tls.key, b"one")


def test_a_lane_key_is_bound_to_its_session_and_is_not_the_secret() -> None:
    key = lane_key(KEY, "lease-1", 7, "gpu-a", "a" * 32)
    others = [
        KEY,
        lane_key(OTHER, "lease-1", 7, "gpu-a", "a" * 32),
        lane_key(KEY, "lease-1", 8, "gpu-a", "a" * 32),
        lane_key(KEY, "lease-1", 7, "gpu-b", "a" * 32),
        lane_key(KEY, "lease-1", 7, "gpu-a", "b" * 32),
    ]
    assert len(key) == 32
    assert key not in others


def test_parts_cannot_be_shifted_between_fields() -> None:
    left = lane_key(KEY, "lease", 71, "gpu", "a")
    assert left != lane_key(KEY, "lease7", 1, "gpu", "a")
    assert left != lane_key(KEY, "lease", 7, "1gpu", "a")


@given(st.text(max_size=80))
def test_no_text_is_a_proof_or_an_exception(text: str) -> None:
    assert not matches(client_proof(KEY, HELLO, NONCE), text)


@given(
    st.dictionaries(
        st.sampled_from([f.name for f in dataclasses.fields(Hello)] + ["x"]),
        st.none() | st.integers() | st.text(max_size=40) | st.lists(st.integers(), max_size=2),
    )
)
def test_any_other_hello_is_a_wire_error(value: Meta) -> None:
    with pytest.raises(WireError):
        Hello.from_meta({"hello": value})
