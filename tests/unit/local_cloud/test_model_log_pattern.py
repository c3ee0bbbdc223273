"""Filter patterns of CloudWatch Logs."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from local_cloud.model.errors import CloudError
from local_cloud.model.log_pattern import compile_pattern


@pytest.mark.parametrize(
    ("pattern", "line", "matches"),
    [
        ("", "anything", True),
        ("ERROR", "an ERROR here", True),
        ("error", "an ERROR", False),
        ("a b", "b and a", True),
        ("a b", "only a", False),
        ('"a b"', "b and a", False),
        ('"a b"', "xa bx", True),
        ("ERROR -retry", "ERROR retry", False),
        ("ERROR -retry", "ERROR", True),
        ("?a ?b", "b", True),
        ("?a ?b", "c", False),
        ('-"two words"', "two words", False),
        (r'"say \"hi\""', 'say "hi"', True),
        ("%e[0-9]+%", "code e42", True),
        ("%e[0-9]+%", "code e", False),
        ("request-id-7", "request-id-7", True),
        ("{", "{", None),
    ],
)
def test_words(pattern: str, line: str, matches: bool | None) -> None:
    if matches is None:
        with pytest.raises(CloudError):
            compile_pattern(pattern)
    else:
        assert compile_pattern(pattern)(line) is matches


EVENT = {
    "x": 1,
    "half": 0.5,
    "name": "web-7",
    "none": None,
    "yes": True,
    "no": False,
    "text": "1",
    "in": {"list": [{"id": "a"}, {"id": "b"}], "odd key": 2, "w-d": 3},
}


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("{ $.x = 1 }", True),
        ("{$.x=1}", True),
        ("{ $.x = 2 }", False),
        ("{ $.x != 2 }", True),
        ("{ $.x > 0.5 }", True),
        ("{ $.x >= 1 }", True),
        ("{ $.x < 1 }", False),
        ("{ $.half <= 5e-1 }", True),
        ("{ $.text = 1 }", False),
        ('{ $.text = "1" }', True),
        ("{ $.text > 0 }", False),
        ("{ $.yes > 0 }", False),
        ('{ $.name = "web-*" }', True),
        ("{ $.name = web-* }", True),
        ("{ $.name = * }", True),
        ('{ $.name = "*x*" }', False),
        ('{ $.name != "web-*" }', False),
        ("{ $.name = %^web-[0-9]$% }", True),
        ("{ $.name != %^web% }", False),
        ("{ $.none IS NULL }", True),
        ("{ $.x IS NULL }", False),
        ("{ $.absent IS NULL }", False),
        ("{ $.yes IS TRUE }", True),
        ("{ $.no IS FALSE }", True),
        ("{ $.x IS TRUE }", False),
        ("{ $.absent NOT EXISTS }", True),
        ("{ $.none NOT EXISTS }", False),
        ("{ $.none EXISTS }", True),
        ("{ $.absent = 1 }", False),
        ("{ $.absent != 1 }", False),
        ("{ $.in.list[1].id = b }", True),
        ("{ $.in.list[2].id = b }", False),
        ("{ $.in['odd key'] = 2 }", True),
        ("{ $.in.w-d = 3 }", True),
        ("{ $.x = 1 && $.half = 1 }", False),
        ("{ $.x = 1 && $.half = 0.5 }", True),
        ("{ $.x = 2 || $.half = 0.5 }", True),
        ("{ $.x = 1 || $.x = 2 && $.half = 9 }", True),
        ("{ ($.x = 1 || $.x = 2) && $.half = 9 }", False),
        ("{ ($.x = 1) && (($.name = web-*)) }", True),
    ],
)
def test_fields_of_json(pattern: str, matches: bool) -> None:
    found = compile_pattern(pattern)
    assert found(json.dumps(EVENT)) is matches
    assert found(f"2026-01-31T12:00:00Z {json.dumps(EVENT)}") is matches
    assert not found("no JSON at all")
    assert not found("{ broken")


@pytest.mark.parametrize(
    "pattern",
    [
        "{ }",
        "{ $.x }",
        "{ $.x = }",
        "{ x = 1 }",
        "{ $.x = 1",
        "{ $.x = 1 && }",
        "{ ($.x = 1 }",
        "{ $.x IS MAYBE }",
        "{ $.x NOT NULL }",
        "{ $.x > word }",
        '{ $.x < "text" }',
        "{ $.x = %(% }",
        "{ $.x > %a% }",
        "[a, b]",
        '"open',
        "%(%",
        "a" * 2000,
        "{ $.x = 1 } more",
        "{" + "(" * 100 + "$.x = 1" + ")" * 100 + "}",
        "{ $.x = 1 $.y = 2 }",
    ],
)
def test_an_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(CloudError) as error:
        compile_pattern(pattern)
    assert error.value.code == "InvalidParameterException"
    assert "Invalid filter pattern: " in error.value.message


@given(st.text(st.sampled_from('{}$.x[]()=<>!&|"%*-? 1a\\'), max_size=20), st.text(max_size=10))
@example("{$.[]=1}", "{}")
@example("%[[%", "[")
def test_any_text_is_a_pattern_or_a_refusal(pattern: str, line: str) -> None:
    try:
        found = compile_pattern(pattern)
    except CloudError:
        return
    found(line)
    found(json.dumps({"x": [line, {"a": 1}]}))
