"""Conditions: what is refused, with its column, and what holds; the same for the same document."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.conditions import (
    CHARACTERS_MAX,
    BadCondition,
    ConditionFailed,
    check_condition,
    holds,
)

RESULT = {"exit_code": 0, "files": [{"key": "a", "size": 4}], "document": {"sure": 0.5, "x": "y"}}

#: Expression → the beginning of its fault, and the column.
FAULTS = {
    "": ("not a JMESPath expression", 0),
    "document.sure < 0.9": ("not a JMESPath expression: column 17; a number is written in", 16),
    "document.sure <": ("the expression ends too early", 15),
    "sure < `1`": ("the result has no 'sure'", 0),
    "!document.sure": ("`!a.b` is `(!a).b`, always null: write !(a.b)", 0),
    "!documen": ("the result has no 'documen'; did you mean 'document'?", 1),
    "length(files) > `1` || log": ("the result has no 'log'", 23),
    "lengt(files) > `1`": ("no function 'lengt'; did you mean 'length'?", 0),
    "exit_code == `0` && length(files, files)": ("length() takes 1 argument(s), not 2", 20),
    "not_null() == `1`": ("not_null() takes at least 1 argument(s), not 0", 0),
    "length(document" + "|[@,@][]" * 8 + ") > `0`": ("it makes too many lists or objects", 0),
    "document." + "a" * CHARACTERS_MAX: ("longer than 1024 characters", 0),
}


@pytest.mark.parametrize("text", FAULTS)
def test_a_fault_is_named_with_its_column(text: str) -> None:
    with pytest.raises(BadCondition) as caught:
        check_condition(text)
    message, column = FAULTS[text]
    assert str(caught.value).startswith(message)
    assert caught.value.column == column


ANSWERS = {
    "document.sure < `0.9`": True,
    "document.sure >= `0.9`": False,
    "exit_code == `0` && !(document.more)": True,
    "document.x == 'y'": True,
    "length(files[?size > `3`]) == `1`": True,
    "files[].size | max(@) > `4`": False,
    "max_by(files, &size).key == 'a'": True,
}


@pytest.mark.parametrize("text", ANSWERS)
def test_a_condition_is_true_or_false(text: str) -> None:
    check_condition(text)
    assert holds(text, RESULT) is ANSWERS[text]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("document.more < `1`", "it is null, neither true nor false"),
        ("document.sure", "it is float, neither true nor false"),
        ("document.x < `1`", "it compares values that have no order"),
        ("starts_with(document.more, 'a')", "invalid type"),
    ],
)
def test_what_is_neither_is_a_failure_with_the_expression(text: str, why: str) -> None:
    check_condition(text)
    with pytest.raises(ConditionFailed) as caught:
        holds(text, RESULT)
    assert str(caught.value).startswith(f"{text}: ")
    assert why in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
WORDS = [
    *("document.x", "files", "length(", "[?@]", "`1`", "'a'"),
    *("<", "&&", "!", "(", ")", "[", "]", ",", "&", "||", "|", "@", "*", ":", "{"),
]


@given(st.lists(st.sampled_from(WORDS), max_size=8), JSON)
def test_any_text_has_one_answer_or_one_of_two_errors(words: list[str], value: object) -> None:
    text, document = " ".join(words), {"document": {"x": value}, "files": [value]}

    def answer() -> object:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                check_condition(text)
                return holds(text, document)
            except (BadCondition, ConditionFailed) as error:
                return str(error)

    assert answer() == answer()
