"""Key schedules and tables of AES for the kernels of `aes.cl` (FIPS 197)."""

from __future__ import annotations

import functools
from importlib.resources import files
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = npt.NDArray[np.uint32]

BLOCK_BYTES = 16
KEY_BYTES = (16, 24, 32)
#: x^8 + x^4 + x^3 + x + 1, the polynomial of AES's field (FIPS 197 section 4.2).
_POLYNOMIAL = 0x11B


def source() -> str:
    """The kernels `encrypt` and `decrypt`."""
    return files(__package__).joinpath("aes.cl").read_text(encoding="ascii")


@functools.cache
def tables(*, decrypts: bool) -> Words:
    """The first column of a round for each byte, then the last round's substitution."""
    substitution = _inverse(_substitution()) if decrypts else _substitution()
    factors = (14, 9, 13, 11) if decrypts else (2, 1, 1, 3)
    columns = [_word([_product(factor, s) for factor in factors]) for s in substitution]
    return np.array([*columns, *substitution], np.uint32)


def schedule(key: bytes, *, decrypts: bool) -> Words:
    """The round keys in the order of their use; their words are big-endian.

    `key` has one of `KEY_BYTES`. For decryption those of the equivalent inverse cipher.
    """
    words = _expanded(key)
    if not decrypts:
        return np.array(words, np.uint32)
    rounds = [words[at : at + 4] for at in range(0, len(words), 4)][::-1]
    mixed = [_inverse_mixed(word) for one in rounds[1:-1] for word in one]
    return np.array([*rounds[0], *mixed, *rounds[-1]], np.uint32)


def rounds_of(key: bytes) -> int:
    """The number of rounds: 10, 12 or 14."""
    return len(key) // 4 + 6


def _expanded(key: bytes) -> list[int]:
    """KEYEXPANSION of FIPS 197 section 5.2."""
    substitution, constant = _substitution(), 1
    words = [int.from_bytes(key[at : at + 4], "big") for at in range(0, len(key), 4)]
    size = len(words)
    for at in range(size, 4 * (rounds_of(key) + 1)):
        last = words[at - 1]
        if at % size == 0:
            turned = (last << 8 | last >> 24) & 0xFFFFFFFF
            last = _substituted(turned, substitution) ^ constant << 24
            constant = _product(2, constant)
        elif size > 6 and at % size == 4:
            last = _substituted(last, substitution)
        words.append(words[at - size] ^ last)
    return words


def _substituted(word: int, substitution: tuple[int, ...]) -> int:
    return _word([substitution[byte] for byte in word.to_bytes(4, "big")])


def _inverse_mixed(word: int) -> int:
    """INVMIXCOLUMNS of one column."""
    a, b, c, d = word.to_bytes(4, "big")
    turned = ((a, b, c, d), (b, c, d, a), (c, d, a, b), (d, a, b, c))
    factors = (14, 11, 13, 9)
    return _word(
        [functools.reduce(int.__xor__, map(_product, factors, column)) for column in turned]
    )


@functools.cache
def _substitution() -> tuple[int, ...]:
    """The substitution box of FIPS 197 section 5.1.1: the inverse in the field, then its rows."""
    inverses = {0: 0}
    for x in range(1, 256):
        inverses[x] = next(y for y in range(1, 256) if _product(x, y) == 1)
    box = []
    for x in range(256):
        inverse = inverses[x] * 0x101  # so that shifts rotate its bits
        box.append(
            (inverse ^ inverse >> 4 ^ inverse >> 5 ^ inverse >> 6 ^ inverse >> 7 ^ 0x63) & 0xFF
        )
    return tuple(box)


def _inverse(substitution: tuple[int, ...]) -> tuple[int, ...]:
    box = [0] * 256
    for x, y in enumerate(substitution):
        box[y] = x
    return tuple(box)


def _product(a: int, b: int) -> int:
    product = 0
    while b:
        if b & 1:
            product ^= a
        a, b = a << 1, b >> 1
        if a & 0x100:
            a ^= _POLYNOMIAL
    return product


def _word(values: list[int]) -> int:
    return int.from_bytes(bytes(values), "big")
