"""Parameters of an input: any that are accepted come back, and no other text is one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.parameters import (
    METADATA,
    NAME,
    PREFIX,
    SET,
    SET_BYTES_MAX,
    parameters_in,
    seen_by_jobs,
    set_text,
    variables_in,
)


@given(st.dictionaries(st.from_regex(NAME, fullmatch=True), st.text(max_size=50), max_size=5))
def test_what_is_written_is_read(parameters: dict[str, str]) -> None:
    try:
        text = set_text(parameters)
    except ValueError:
        assert any("\0" in value for value in parameters.values()) or parameters
        return
    assert text.isascii()
    assert len(text) <= SET_BYTES_MAX
    assert parameters_in({SET: text}) == parameters
    assert variables_in({SET: text}) == {f"{PREFIX}{k}": v for k, v in parameters.items()}


@given(st.text(max_size=30))
def test_any_other_text_is_refused_or_holds_parameters(text: str) -> None:
    try:
        found = parameters_in({SET: text})
    except ValueError:
        return
    assert all(NAME.fullmatch(name) and isinstance(value, str) for name, value in found.items())


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"a-b": "1"}, "'a-b' is not a name of a parameter"),
        ({"": "1"}, "'' is not a name of a parameter"),
        ({"1a": "1"}, "'1a' is not a name of a parameter"),
        ({"a" * 65: "1"}, "is not a name of a parameter"),
        ({"A": "x\0"}, "the value of A is not a text without NUL"),
        ({"A": "\ud800"}, "the value of A is not Unicode text"),
        ({"A": "x" * SET_BYTES_MAX}, "the parameters are 1544 bytes of JSON"),
    ],
)
def test_what_cannot_be_a_parameter_is_named(parameters: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=f"^.{{0,80}}{why}"):
        set_text(parameters)


@pytest.mark.parametrize("text", ["[]", "{", '{"A": 1}', '{"A-B": "1"}', '{"A": "\\u0000"}'])
def test_an_entry_of_others_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^the metadata 'orchgpu-set' of the input"):
        variables_in({SET: text})


def test_our_own_notes_are_not_seen_and_other_metadata_is() -> None:
    metadata = {"orchgpu-sha256": "0", "orchgpu-job": "j", SET: '{"A":"1"}', "owner": "lab"}
    seen = seen_by_jobs(metadata)
    assert seen == {SET: '{"A":"1"}', "owner": "lab"}
    found = variables_in(seen)
    assert json.loads(found.pop(METADATA)) == {"owner": "lab"}
    assert found == {"ORCHGPU_PARAM_A": "1"}
    assert variables_in({}) == {}
