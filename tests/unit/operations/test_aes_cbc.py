"""The operation aes_cbc: NIST's vectors, equality of its implementations, padding, errors."""

from __future__ import annotations

import random
from typing import Any

import pytest

from operations import aes
from operations.plugins.aes_cbc import KernelCbc, OpensslCbc
from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context
from tests.unit.operations.conftest import Card

#: NIST SP 800-38A, appendix F.2: CBC with keys of 128, 192 and 256 bits.
IV = "000102030405060708090a0b0c0d0e0f"
PLAIN = (
    "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
    "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
)
VECTORS = {
    "2b7e151628aed2a6abf7158809cf4f3c": (
        "7649abac8119b246cee98e9b12e9197d5086cb9b507219ee95db113a917678b2"
        "73bed6b8e3c1743b7116e69e222295163ff1caa1681fac09120eca307586e1a7"
    ),
    "8e73b0f7da0e6452c810f32b809079e562f8ead2522c6b7b": (
        "4f021db243bc633d7178183a9fa071e8b4d9ada9ad7dedf4e5e738763f69145a"
        "571b242012fb7ae07fa9baac3df102e008b0e27988598881d920a9e64f5615cd"
    ),
    "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4": (
        "f58c4c04d6e5f1ba779eabfb5f7bfbd69cfc4e967edb808d679f777bc6702c7d"
        "39f23369a9d9bacfa530e26304231461b2eb05e2c39be9fcda6c19078c6a9d1b"
    ),
}
#: FIPS 197, appendix A.1: the last round key of the first vector's key.
LAST_ROUND_KEY = [0xD014F9A8, 0xC9EE2589, 0xE13F0CC8, 0xB6630CA6]


def run(
    card: Card | None, direction: str, key: bytes, iv: bytes, data: bytes, **args: Any
) -> tuple[dict[str, Any], bytes]:
    """The operation on a card, or without one by OpenSSL."""
    operation = OpensslCbc() if card is None else KernelCbc()
    context = Context(quota=Quota(1 << 30)) if card is None else card()
    inputs = [memoryview(part) for part in (key, iv, data)]
    values, (result,) = operation.run(context, {"direction": direction, **args}, inputs)
    assert context.quota.used_bytes == 0
    return values, bytes(result)


@pytest.mark.parametrize("key", VECTORS, ids=len)
def test_nist_vectors(card: Card, key: str) -> None:
    plain, cipher = bytes.fromhex(PLAIN), bytes.fromhex(VECTORS[key])
    secret, iv = bytes.fromhex(key), bytes.fromhex(IV)
    for device in (None, card):
        values, encrypted = run(device, "encrypt", secret, iv, plain)
        assert (values, encrypted) == ({"messages": 1, "message_bytes": 64}, cipher)
        assert run(device, "decrypt", secret, iv, cipher)[1] == plain


def test_the_key_schedule_of_the_standard() -> None:
    key = bytes.fromhex(next(iter(VECTORS)))
    assert aes.schedule(key, decrypts=False)[-4:].tolist() == LAST_ROUND_KEY
    assert aes.schedule(key, decrypts=True)[:4].tolist() == LAST_ROUND_KEY


@pytest.mark.parametrize("direction", ["encrypt", "decrypt"])
@pytest.mark.parametrize(("blocks", "messages"), [(1, 1), (7, 1), (1, 100), (33, 65)])
def test_the_kernel_computes_what_openssl_computes(
    card: Card, direction: str, blocks: int, messages: int
) -> None:
    stream = random.Random(f"{direction} {blocks} {messages}")
    key, iv = stream.randbytes(32), stream.randbytes(16 * messages)
    data = stream.randbytes(16 * blocks * messages)
    ours = run(card, direction, key, iv, data, messages=messages)
    assert ours == run(None, direction, key, iv, data, messages=messages)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17])
def test_padding_makes_whole_blocks_and_is_removed(card: Card, size: int) -> None:
    key, iv, data = bytes(16), bytes(range(16)), bytes(range(100, 100 + size))
    for device in (None, card):
        values, encrypted = run(device, "encrypt", key, iv, data, padding="pkcs7")
        assert len(encrypted) == values["message_bytes"] == size // 16 * 16 + 16
        values, decrypted = run(device, "decrypt", key, iv, encrypted, padding="pkcs7")
        assert (values["message_bytes"], decrypted) == (size, data)


def test_no_data_is_no_error(card: Card) -> None:
    for device in (None, card):
        assert run(device, "encrypt", bytes(16), bytes(16), b"")[1] == b""


@pytest.mark.parametrize(
    ("key", "iv", "data", "args", "message"),
    [
        (15, 16, 16, {}, "a key has 16, 24 or 32 bytes, not 15"),
        (16, 16, 32, {"messages": 2}, "'iv' has 16 bytes per message, 32 together, not 16"),
        (16, 16, 17, {}, "whole blocks of 16 bytes are needed, not 17 bytes; or use padding pkcs7"),
        (16, 32, 48, {"messages": 2}, "2 messages of whole blocks"),
        (16, 32, 32, {"messages": 2, "padding": "pkcs7"}, "a call takes one message"),
    ],
)
def test_wrong_inputs_are_named(
    key: int, iv: int, data: int, args: dict[str, Any], message: str
) -> None:
    with pytest.raises(OpFailed, match=message) as failed:
        run(None, "encrypt", bytes(key), bytes(iv), bytes(data), **args)
    assert failed.value.code is OpCode.EINVAL


@pytest.mark.parametrize("size", [0, 32])
def test_damaged_padding_is_refused(size: int) -> None:
    with pytest.raises(OpFailed, match="padding"):
        run(None, "decrypt", bytes(16), bytes(16), bytes(size), padding="pkcs7")


def test_memory_above_the_lease_is_refused() -> None:
    context = Context(quota=Quota(1000))
    inputs = [memoryview(bytes(size)) for size in (16, 16, 1600)]
    with pytest.raises(OpFailed) as failed:
        OpensslCbc().run(context, {"direction": "encrypt"}, inputs)
    assert failed.value.code is OpCode.ENOMEM
