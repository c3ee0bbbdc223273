"""Values made in C behave as the dataclasses that they are written as."""

from __future__ import annotations

import copy
import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from corekit import values


def classes(dataclass: Any, field: Any) -> tuple[Any, Any]:
    """The same two classes by either decorator."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Base:
        """What is known of all."""

        x: int
        notes: Mapping[str, int] = field(default_factory=dict)

        @property
        def double(self) -> int:
            return 2 * self.x

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Derived(Base):
        z: int
        w: tuple[int, ...] = ()

        def __post_init__(self) -> None:
            if self.z < 0:
                raise ValueError("z is negative")

    return Base, Derived


OURS = classes(values.dataclass, values.field)
STANDARD = classes(dataclasses.dataclass, dataclasses.field)


@pytest.mark.parametrize("pair", [OURS, STANDARD], ids=["ours", "standard"])
def test_what_works_on_a_dataclass_works(pair: tuple[Any, Any]) -> None:
    base, derived = pair
    value = derived(x=1, z=2)
    assert (value.x, value.notes, value.z, value.w, value.double) == (1, {}, 2, (), 2)
    assert [f.name for f in dataclasses.fields(derived)] == ["x", "notes", "z", "w"]
    assert dataclasses.fields(derived)[0].default is dataclasses.MISSING
    assert dataclasses.asdict(value) == {"x": 1, "notes": {}, "z": 2, "w": ()}
    assert dataclasses.is_dataclass(value)
    assert isinstance(value, base)
    assert value == derived(x=1, z=2, notes={}) != derived(x=1, z=3)
    assert repr(value).endswith("Derived(x=1, notes={}, z=2, w=())")
    assert copy.deepcopy(value) == value
    assert base.__doc__ == "What is known of all."
    assert typing.get_type_hints(derived)["w"] == tuple[int, ...]
    for replace in (values.replace, dataclasses.replace):
        assert replace(value, w=(1,)) == derived(x=1, z=2, w=(1,))
        with pytest.raises(ValueError, match="negative"):
            replace(value, z=-1)
    match value:
        case base(x=1):
            pass
        case _:
            raise AssertionError("no match")


@pytest.mark.parametrize("pair", [OURS, STANDARD], ids=["ours", "standard"])
def test_what_a_dataclass_refuses_is_refused(pair: tuple[Any, Any]) -> None:
    _, derived = pair
    with pytest.raises(ValueError, match="negative"):
        derived(x=1, z=-1)
    with pytest.raises(AttributeError):
        derived(x=1, z=2).x = 3
    for wrong in ({"x": 1}, {"x": 1, "z": 2, "more": 3}):
        with pytest.raises(TypeError):
            derived(**wrong)
    with pytest.raises(TypeError):
        derived(1, 2)


def test_only_frozen_classes_of_named_fields_become_structs() -> None:
    @values.dataclass(slots=True)
    class Counter:
        count: int = 0

    counter = Counter(1)
    counter.count += 1
    assert counter == Counter(2)
    assert not isinstance(counter, msgspec.Struct)
    assert isinstance(OURS[1](x=1, z=2), msgspec.Struct)
