"""`{account}` and `{region}` in storage paths."""

from __future__ import annotations

import pytest

from corekit.budget import Budget
from corekit.errors import AppError
from corekit.values import replace
from fdl.diagnostics import Severity
from fdl.lint.lint import lint
from fdl.model import Function
from fdl.parse import parse
from fdl.plan.desired import buckets_of, desired
from fdl.plan.groups import deployed
from fdl.plan.placeholders import at_place
from tests.unit.fdl.definitions import AWS, CODE, LOCAL

FDL = """\
functions:
  aws:
  - lambda:
      name: search
      init_script: search.py
      output:
      - {path: "out-{account}/hits-{region}", suffix: [.tsv]}
      deployment: {bucket: "zips-{account}-{region}"}
    iam: {create: true}
    gpu: {}
    job:
      input:
      - path: ins-{account}/queries
"""


def function(text: str = FDL) -> Function:
    (found,) = deployed(parse(text))
    return found


def test_each_account_gets_buckets_of_its_own() -> None:
    found = at_place(function(), AWS)
    assert buckets_of(found) == (
        "ins-123456789012",
        "search-intermediate-123456789012-eu-west-1",
        "out-123456789012",
    )
    assert str(found.function.output[0].path) == "out-123456789012/hits-eu-west-1"
    assert found.function.deployment.bucket == "zips-123456789012-eu-west-1"
    assert found.function.output[0].suffixes == (".tsv",)
    assert at_place(found, AWS) == found
    assert buckets_of(at_place(function(), LOCAL))[0] == "ins-000000000000"


def test_nothing_of_a_deployment_has_a_placeholder() -> None:
    made = desired(at_place(function(), AWS), AWS, CODE, Budget())
    assert "{account}" not in repr(made)
    assert "{region}" not in repr(made)


def test_a_declared_intermediate_is_resolved_and_plain_ones_stay() -> None:
    declared = FDL.replace("job:", "job:\n      intermediate: mid-{region}")
    assert at_place(function(declared), AWS).intermediate.bucket == "mid-eu-west-1"
    plain = function(FDL.replace("-{account}", "").replace("-{region}", ""))
    assert at_place(plain, AWS) is plain or at_place(plain, AWS) == plain
    assert plain.intermediate.bucket == "search-intermediate"


def test_steps_of_a_group_are_resolved_too() -> None:
    text = """functions: {aws: [
      {group: g, lambda: {name: a, init_script: a.sh, input: [{path: "ins-{account}"}],
        output: [{path: "mid-{account}"}]}},
      {group: g, lambda: {name: b, init_script: b.sh, input: [{path: "mid-{account}"}],
        output: [{path: "out-{account}"}]}}]}"""
    found = at_place(function(text), AWS)
    assert [step.function.output[0].path.bucket for step in found.steps] == [
        "mid-123456789012",
        "out-123456789012",
    ]


def test_a_long_name_still_fits_into_a_bucket() -> None:
    found = function(FDL.replace("search\n", "s" * 60 + "\n", 1))
    other = function(FDL.replace("search\n", "s" * 59 + "t\n", 1))
    far = replace(AWS, region="ap-southeast-1")
    names = [at_place(one, far).intermediate.bucket for one in (found, other)]
    assert max(map(len, names)) <= 63


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("ins-{acount}/q", "its placeholders are {account} and {region}"),
        ("ins-{}/q", "its placeholders are {account} and {region}"),
        ("i" * 60 + "-{account}/q", "3 to 63 characters"),
    ],
)
def test_other_placeholders_and_too_long_names_are_refused(path: str, text: str) -> None:
    with pytest.raises(AppError, match=text.replace("{", r"\{")):
        parse(FDL.replace("ins-{account}/queries", path))


def test_a_name_that_becomes_too_long_is_refused_at_the_deploy() -> None:
    found = function(FDL.replace("ins-{account}/queries", "i" * 45 + "-{region}/q"))
    odd = replace(AWS, region="ap-southeast-1-somewhere")
    with pytest.raises(AppError, match="is not a bucket name"):
        at_place(found, odd)


def test_without_an_account_lint_keeps_the_placeholder_and_notes_it() -> None:
    notes = [one.message for one in lint(parse(FDL)) if one.severity is Severity.NOTE]
    expected = "ins-{account}/queries: a deploy replaces {account} and {region} by its own"
    assert expected in notes
    assert not [one for one in lint(parse(FDL), place=AWS) if "replaces" in one.message]
