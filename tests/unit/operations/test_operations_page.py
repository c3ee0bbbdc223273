"""The page of operations matches their declarations."""

from __future__ import annotations

from typing import Any

import pytest

from remote_gpu.wire.errors import OpFailed
from remote_gpu.worker.arguments import Flag, Integer, Number, Signature, Structure, Text
from tools.operations_table import PAGE, renewed


def test_the_page_matches_the_declarations() -> None:
    """Renew it with `python -m tools.operations_table`."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == renewed(page)


SIGNATURE = Signature(
    arguments=(
        Integer(name="whole", meaning="", least=1, most=3),
        Number(name="number", meaning="", least=0, most=1, default=0.5),
        Text(name="text", meaning="", default="a", choices=("a", "b")),
        Flag(name="flag", meaning=""),
        Structure(name="list", meaning="", rule="a list", default=None),
    )
)


def test_arguments_get_their_defaults() -> None:
    found = SIGNATURE.read({"whole": 2, "implementation": "any"})
    assert found == {"whole": 2, "number": 0.5, "text": "a", "flag": False, "list": None}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({}, "'whole' must be an integer of 1…3"),
        ({"whole": True}, "'whole' must be"),
        ({"whole": 4}, "'whole' must be"),
        ({"whole": 1, "number": "x"}, "'number' must be a number of 0…1"),
        ({"whole": 1, "number": float("nan")}, "'number' must be"),
        ({"whole": 1, "number": True}, "'number' must be"),
        ({"whole": 1, "text": "c"}, "'text' must be one of a, b"),
        ({"whole": 1, "flag": 1}, "'flag' must be true or false"),
        (
            {"whole": 1, "other": 1},
            "unknown argument 'other'; the operation takes whole, number, text",
        ),
    ],
)
def test_an_invalid_argument_is_named(args: dict[str, Any], said: str) -> None:
    with pytest.raises(OpFailed, match="EINVAL") as failed:
        SIGNATURE.read(args)
    assert said in failed.value.message
