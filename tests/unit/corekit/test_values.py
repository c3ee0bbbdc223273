"""Values made in C: frozen, with fields by name, held to the limits that their fields declare."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pytest

from corekit.errors import AppError
from corekit.values import Checked, Meta, Value, checked, field, replace


class Base(Value):
    """Fields of all."""

    x: int
    notes: Mapping[str, int] = field(default_factory=dict)

    @property
    def double(self) -> int:
        return 2 * self.x


class Derived(Base):
    z: int
    w: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.z < 0:
            raise ValueError("z is negative")


def test_a_value_is_equal_by_its_fields_and_matches_by_them() -> None:
    value = Derived(x=1, z=2)
    assert (value.x, value.notes, value.z, value.w, value.double) == (1, {}, 2, (), 2)
    assert value == Derived(x=1, z=2, notes={}) != Derived(x=1, z=3)
    assert copy.deepcopy(value) == value
    match value:
        case Base(x=1):
            pass
        case _:
            raise AssertionError("no match")


def test_a_value_is_frozen_and_takes_its_fields_by_name() -> None:
    with pytest.raises(AttributeError):
        Derived(x=1, z=2).x = 3  # type: ignore[misc]  # what is tried
    made: Any = Derived
    for wrong in ({"x": 1}, {"x": 1, "z": 2, "more": 3}):
        with pytest.raises(TypeError):
            made(**wrong)
    with pytest.raises(TypeError):
        made(1, 2)


def test_decoding_refuses_a_key_that_a_value_does_not_have() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `y`"):
        msgspec.json.decode(b'{"x": 1, "y": 2}', type=Base)


def test_replace_makes_a_changed_value_by_the_same_rules() -> None:
    assert replace(Derived(x=1, z=2), w=(1,)) == Derived(x=1, z=2, w=(1,))
    with pytest.raises(ValueError, match="negative"):
        replace(Derived(x=1, z=2), z=-1)


def test_replace_takes_a_dataclass_too() -> None:
    @dataclass(frozen=True)
    class Plain:
        x: int

    assert replace(Plain(1), x=2) == Plain(2)


class Limited(Checked):
    count: Annotated[int, Meta(ge=1, le=4)] = 1
    least: Annotated[int, Meta(ge=0)] = 0
    length_s: Annotated[float, Meta(gt=0, le=9.5)] | None = None
    text: Annotated[str, Meta(max_length=3)] = ""
    many: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(max_length=2)] = ()
    even: Annotated[int, Meta(extra={"problem": lambda n: "is odd" if n % 2 else None})] = 0


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"count": 0}, "count 0 must lie in 1…4"),
        ({"count": 5}, "count 5 must lie in 1…4"),
        ({"least": -1}, "least -1 must be 0 or more"),
        ({"length_s": 0.0}, "length_s 0 must be more than 0 and at most 9.5"),
        ({"text": "abcd"}, "text has 4 characters; at most 3"),
        ({"many": (1, 2, 3)}, "many has 3 items; at most 2"),
        ({"many": (1, -2)}, "many -2 must be 0 or more"),
        ({"even": 3}, "even is odd"),
    ],
)
def test_a_limit_of_a_field_holds_wherever_the_value_is_made(
    fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(AppError, match=f"^{problem}$"):
        Limited(**fields)
    with pytest.raises((msgspec.ValidationError, AppError)):
        msgspec.json.decode(msgspec.json.encode(fields), type=Limited)


def test_what_lies_at_a_limit_is_accepted() -> None:
    checked(Limited(count=4, least=0, length_s=9.5, text="abc", many=(0, 1), even=2))
    checked(Limited(count=1, length_s=None))
