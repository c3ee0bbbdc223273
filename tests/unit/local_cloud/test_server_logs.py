"""Filter patterns of CloudWatch Logs: words and quoted texts; every other form is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_cloud.model.errors import CloudError
from local_cloud.server.logs import PATTERN_CHARS_MAX, terms_of


@pytest.mark.parametrize(
    ("pattern", "terms"),
    [
        ("", ()),
        (" ERROR ", ("ERROR",)),
        ("a b", ("a", "b")),
        ('"a b" c', ("a b", "c")),
        (r'"say \"hi\""', ('say "hi"',)),
        ("request-id-7", ("request-id-7",)),
    ],
)
def test_a_line_must_contain_every_term(pattern: str, terms: tuple[str, ...]) -> None:
    assert terms_of(pattern) == terms


@pytest.mark.parametrize(
    ("pattern", "code"),
    [
        ("{ $.x = 1 }", "NotImplemented"),
        ("[a, b]", "NotImplemented"),
        ("?a ?b", "NotImplemented"),
        ("ERROR -retry", "NotImplemented"),
        ("%e[0-9]+%", "NotImplemented"),
        ('"open', "InvalidParameterException"),
        ("a" * (PATTERN_CHARS_MAX + 1), "InvalidParameterException"),
    ],
)
def test_another_pattern_is_refused(pattern: str, code: str) -> None:
    with pytest.raises(CloudError) as error:
        terms_of(pattern)
    assert error.value.code == code


@given(st.text(st.sampled_from('{}$.x[]"%*-? 1a\\'), max_size=20))
def test_any_text_is_a_pattern_or_a_refusal(pattern: str) -> None:
    try:
        terms = terms_of(pattern)
    except CloudError:
        return
    assert all(isinstance(term, str) for term in terms)
