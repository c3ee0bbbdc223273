"""References to secrets: every form, the refusals, and the calls of AWS that read them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.secrets.reference import Scheme, SecretReference, UnknownScheme, parse_reference
from contract.secrets.stores import call_of, content_of

ARN = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:prod/db-AbCdEf"
PARAMETER_ARN = "arn:aws-cn:ssm:cn-north-1:123456789012:parameter/prod/db"

FORMS = {
    "secretsmanager:prod/db": (Scheme.SECRETS_MANAGER, "prod/db", "", None),
    "secretsmanager:rds!db-0": (Scheme.SECRETS_MANAGER, "rds!db-0", "", None),
    "secretsmanager:prod/db#password": (Scheme.SECRETS_MANAGER, "prod/db", "password", None),
    "secretsmanager:a#b#c d": (Scheme.SECRETS_MANAGER, "a", "b#c d", None),
    f"secretsmanager:{ARN}#user": (Scheme.SECRETS_MANAGER, ARN, "user", "eu-west-1"),
    "ssm:token": (Scheme.PARAMETER_STORE, "token", "", None),
    "ssm:/prod/db:3": (Scheme.PARAMETER_STORE, "/prod/db:3", "", None),
    f"ssm:{PARAMETER_ARN}": (Scheme.PARAMETER_STORE, PARAMETER_ARN, "", "cn-north-1"),
    "file:secrets/token": (Scheme.FILE, "secrets/token", "", None),
    "file:C:/a b#c": (Scheme.FILE, "C:/a b#c", "", None),
}

REFUSED = {
    "": "write secretsmanager:NAME",
    "hunter2": "write secretsmanager:NAME",
    "vault:kv/token": "write secretsmanager:NAME",
    "ssm:": "names no secret: write ssm:NAME",
    "file:": "names no secret: write file:PATH",
    "secretsmanager:#key": "not the name or ARN of a secret",
    "secretsmanager:a#": "names no key after #",
    "secretsmanager:a b": "not the name or ARN of a secret",
    "secretsmanager:arn:aws:ssm:eu-west-1:123456789012:parameter/x": "not the name or ARN",
    "ssm:a/b": "begins with /: write ssm:/a/b",
    "ssm:/a//b": "not the name or ARN of a parameter",
    "ssm:/a#b": "a parameter has no keys",
    "ssm:/aws/reference/secretsmanager/x": "write secretsmanager:x",
    "file:a\nb": "printable characters",
    "file:" + "x" * 2000: "printable characters",
}


@pytest.mark.parametrize("text", FORMS)
def test_a_reference_is_read_and_written_back(text: str) -> None:
    reference = parse_reference(text)
    assert (reference.scheme, reference.name, reference.key, reference.region) == FORMS[text]
    assert str(reference) == text


@pytest.mark.parametrize("text", REFUSED)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[text]):
        parse_reference(text)


def test_text_that_may_be_the_secret_is_not_quoted() -> None:
    with pytest.raises(ValueError, match="not shown") as caught:
        parse_reference("correct horse battery staple")
    assert "horse" not in str(caught.value)
    with pytest.raises(UnknownScheme) as unknown:
        parse_reference("admin:hunter2")
    assert "hunter2" not in str(unknown.value)
    assert "admin" not in str(unknown.value)


@given(st.text(max_size=60))
def test_any_text_is_a_reference_or_refused(text: str) -> None:
    try:
        reference = parse_reference(text)
    except ValueError:
        return
    assert parse_reference(str(reference)) == reference


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("ssm:/a/b:3", "/a/b"),
        ("ssm:/a/b", "/a/b"),
        (f"ssm:{PARAMETER_ARN}:prod", PARAMETER_ARN),
        (f"ssm:{PARAMETER_ARN}", PARAMETER_ARN),
        (f"secretsmanager:{ARN}", ARN),
    ],
)
def test_the_entry_is_without_version_and_label(text: str, entry: str) -> None:
    assert parse_reference(text).entry == entry


def test_the_calls() -> None:
    call = call_of(parse_reference(f"secretsmanager:{ARN}#user"))
    assert (call.method, call.region) == ("get_secret_value", "eu-west-1")
    assert (call.action, call.arguments) == ("secretsmanager:GetSecretValue", {"SecretId": ARN})
    call = call_of(parse_reference("ssm:/a:3"))
    assert call.arguments == {"Name": "/a:3", "WithDecryption": True}
    assert call.action == "ssm:GetParameter"


def _secret(key: str = "") -> SecretReference:
    return SecretReference(Scheme.SECRETS_MANAGER, "s", key)


def test_contents() -> None:
    assert content_of(parse_reference("ssm:a"), {"Parameter": {"Value": "ü"}}) == "ü".encode()
    assert content_of(_secret(), {"SecretString": "x"}) == b"x"
    assert content_of(_secret(), {"SecretBinary": b"\xff"}) == b"\xff"
    document = json.dumps({"user": "ada", "port": 5432, "none": None, "in": {"a": 1}})
    answer = {"SecretString": document}
    assert content_of(_secret("user"), answer) == b"ada"
    assert content_of(_secret("port"), answer) == b"5432"
    assert content_of(_secret("in"), answer) == b'{"a": 1}'
    assert content_of(_secret("user"), {"SecretBinary": document.encode()}) == b"ada"


@pytest.mark.parametrize(
    ("content", "problem"),
    [('{"a": "hunter2"}', "has no key 'b'"), ('{"b": null}', "has no key 'b'"), ("x", "JSON")],
)
def test_a_missing_key_is_reported_without_the_content(content: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        content_of(_secret("b"), {"SecretString": content})
    assert "hunter2" not in str(caught.value)
