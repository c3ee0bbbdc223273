"""`service:`: what is read, refused and made."""

from __future__ import annotations

from typing import Any

import pytest

from corekit.budget import Budget
from corekit.errors import AppError
from corekit.values import replace
from fdl.parse import parse
from fdl.plan.desired import desired
from fdl.plan.groups import deployed
from fdl.plan.resources import (
    DeployTarget,
    FunctionResource,
    InvokeConfig,
    Notification,
    Permission,
)
from tests.unit.fdl.definitions import AWS, CODE, LOCAL, errors, resources
from tests.unit.fdl.test_host import record_of

OWN = replace(LOCAL, by_services=True)
URL = "http://fold.default.svc.cluster.local"
FILE = f"""\
functions:
  aws:
  - lambda:
      name: fold
      init_script: fold.sh
      timeout: 3600
      output: [{{path: folds}}]
    gpu: {{memory: 1GiB}}
    job: {{input: {{path: chains}}}}
    service: {URL}
"""


def test_its_record_has_the_url_and_the_package_and_nothing_of_lambda_is_made() -> None:
    found = resources(FILE, OWN)
    assert not {type(one) for one in found} & {FunctionResource, InvokeConfig, Permission}
    rules = [one.id for one in found if isinstance(one, Notification)]
    assert rules == ["orchgpu-fold-jobs", "orchgpu-fold-results"]
    record = record_of(FILE, place=OWN)
    assert record.host is not None
    assert (record.execution, record.host.service, record.timeout_s) == ("lambda", URL, 3600.0)
    assert (record.host.package_bucket, record.package_sha256) == (OWN.state_bucket, CODE.sha256)
    assert record.host.process["ORCHGPU_SCRIPT"] == "script/fold.sh"
    assert (record.request.programs, record.advance_s) == ((), 0.0)


def test_the_plan_shows_where_it_runs_and_what_the_container_needs() -> None:
    notices = desired(deployed(parse(FILE, "f"))[0], OWN, CODE, Budget()).notices
    assert f"fold: {URL} runs it; its container has ORCHGPU_STATE_BUCKET={OWN.state_bucket}" in (
        notices
    )


def test_the_block_and_its_short_form_are_one() -> None:
    block = FILE.replace(f"service: {URL}", f"service: {{url: '{URL}'}}")
    assert parse(block, "f").functions.aws[0].service == parse(FILE, "f").functions.aws[0].service


@pytest.mark.parametrize("url", ["fold", "ftp://h/f", "http://me:pw@h/f", "http://h/f?key=1"])
def test_only_a_url_without_a_secret_is_taken(url: str) -> None:
    with pytest.raises(AppError, match=r"functions\.aws\[0\]\.service\.url: .* is not an http://"):
        parse(FILE.replace(f"service: {URL}", f"service: {{url: '{url}'}}"), "f")


@pytest.mark.parametrize("place", [AWS, LOCAL])
def test_a_cloud_with_lambda_refuses_it_where_it_stands(place: DeployTarget) -> None:
    text = "this cloud runs functions in Lambda: leave it out, or deploy to cloud `own`"
    assert f"functions.aws[0].service: {text}" in errors(FILE, place)
    assert errors(FILE, OWN) == errors(FILE) == []


@pytest.mark.parametrize(
    ("old", "new", "key", "words"),
    [
        ("    job", "    execution: host\n    job", "service", "`execution: host` names another"),
        ("    job", "    execution: auto\n    job", "service", "`execution: auto` names another"),
        ("chains}}", "chains}, start: event}", "job.start", "by the orchestrator alone"),
        (
            "      timeout",
            "      layers: ['arn:x']\n      timeout",
            "lambda.layers",
            "a service has none",
        ),
        (
            "chains}}",
            "chains}, completion: object, object: 'folds/{job}'}",
            "service",
            "its container runs code by our runner",
        ),
        (f"service: {URL}", "service: http://h:70000/f", "service", "a port is 1 to 65535"),
        ("gpu: {memory: 1GiB}\n    job: {input: {path: chains}}", "job: none", "service", "jobs"),
    ],
)
def test_what_a_service_cannot_run_is_refused(old: str, new: str, key: str, words: str) -> None:
    assert old in FILE
    found = errors(FILE.replace(old, new, 1), OWN)
    assert any(one.startswith(f"functions.aws[0].{key}: ") and words in one for one in found), found


def test_steps_of_a_group_have_one_service() -> None:
    def steps(second: str) -> Any:
        return errors(
            f"""\
functions:
  aws:
  - lambda: {{name: a, init_script: a.sh, timeout: 800, output: [{{path: between}}]}}
    job: {{input: {{path: chains}}}}
    service: {URL}
    group: both
  - lambda: {{name: b, init_script: b.sh, timeout: 800, input: [{{path: between}}],
      output: [{{path: folds}}]}}
    service: {second}
    group: both
""",
            OWN,
        )

    assert steps(URL) == []
    assert [one for one in steps("http://other") if ".service: service differs" in one]
