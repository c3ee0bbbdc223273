"""`completion: object`: what a deploy makes for code that our runner does not run, and what not."""
# ruff: noqa: E501  (one line per message, as people see it)

import base64
import json
from collections.abc import Mapping

import pytest

from corekit.decode import decode
from fdl.parse import parse
from fdl.plan.resources import FunctionResource, Notification, QueueResource, Record
from fdl.plan.roles import role_of
from gpu_scheduler.model import LeaseLifetime
from orchgpu.core.function import Function
from tests.unit.fdl.definitions import AWS, LOCAL, errors, only, resources

IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/blast:1"
SUPERVISOR = f"""\
functions:
  aws:
  - lambda:
      name: blast
      runtime: image
      container: {{image: {IMAGE}, create_image: false, environment: {{Variables: {{DB: swissprot}}}}}}
      output: [{{path: answers/tsv, suffix: [.tsv]}}]
      vpc: {{SubnetIds: [subnet-1]}}
    iam: {{create: true}}
    gpu: {{middleware: rcuda, count: 1}}
    job:
      input: {{path: queries/in}}
      envelope: tar.gz
      completion: object
      object: answers/tsv/{{stem}}.tsv
storage_providers: {{s3: {{mine: {{access_key: AKIAIOSFODNN7EXAMPLE, secret_key: hidden}}}}}}
"""


def test_an_image_with_scars_supervisor_gets_its_file_and_no_credentials() -> None:
    assert errors(SUPERVISOR, AWS) == []
    function: FunctionResource = only(FunctionResource, resources(SUPERVISOR))
    assert (function.image, function.handler, function.package) == (IMAGE, "", "")
    assert function.variables["DB"] == "swissprot"
    settings = json.loads(base64.b64decode(function.variables["FDL"]))
    assert settings["output"] == [
        {"storage_provider": "s3", "path": "answers/tsv", "suffix": [".tsv"]}
    ]
    assert settings["storage_providers"] == {}
    assert "hidden" not in json.dumps(dict(function.variables)) + json.dumps(settings)


def test_events_of_its_object_go_to_the_completion_queue() -> None:
    made = resources(SUPERVISOR)
    rules = [r for r in made if isinstance(r, Notification) and r.bucket == "answers"]
    assert [(r.id, r.prefix, r.suffix) for r in rules] == [("orchgpu-blast-object", "tsv/", ".tsv")]
    (queue,) = [r for r in made if isinstance(r, QueueResource) and r.name == "blast-done"]
    sources = queue.policy["Statement"][0]["Condition"]["ArnEquals"]["aws:SourceArn"]
    assert sources == ["arn:aws:s3:::blast-intermediate", "arn:aws:s3:::answers"]
    staging = next(r for r in made if isinstance(r, Notification) and "staging" in r.id)
    assert staging.suffix == ".tar.gz"


def test_the_record_names_the_object_and_the_lease_has_a_deadline() -> None:
    record: Record = only(Record, resources(SUPERVISOR))
    urls: Mapping[str, str] = {name: name for name in ("blast-jobs", "blast-dlq", "blast-done")}
    served = decode(Function, record.resolved(urls).body)
    assert (served.object_bucket, served.object_key) == ("answers", "tsv/{stem}.tsv")
    assert served.hold is LeaseLifetime.DEADLINE
    assert served.request.lease_s


def test_its_role_commits_no_results() -> None:
    (function,) = parse(SUPERVISOR).functions.aws
    names = [statement["Sid"] for statement in role_of(function, AWS).policy["Statement"]]
    assert "Results" not in names
    assert "Envelopes" in names


def test_a_handler_of_lambdas_own_form_is_the_functions_handler() -> None:
    text = SUPERVISOR.replace("runtime: image", "handler: mine.entry").replace(
        f"image: {IMAGE}, create_image: false, ", ""
    )
    assert errors(text, LOCAL) == []
    function: FunctionResource = only(FunctionResource, resources(text, LOCAL))
    assert function.handler == "mine.entry"
    assert "FDL" not in function.variables
    assert function.variables["DB"] == "swissprot"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "      object: answers/tsv/{stem}.tsv\n",
            "",
            "functions.aws[0].job.completion: needs job.object: the one key whose change ends a job",
        ),
        (
            "completion: object",
            "completion: result",
            "functions.aws[0].job.object: has no effect without completion: object",
        ),
        (
            "{stem}.tsv",
            "all.tsv",
            "functions.aws[0].job.object: every job would end with the same object: put one of {job}, {key}, {name}, {stem} into it",
        ),
        (
            "{stem}.tsv",
            "{file}.tsv",
            "functions.aws[0].job.object: {file} is not one of {job}, {key}, {name}, {stem}",
        ),
        (
            "runtime: image",
            "init_script: a.sh",
            "functions.aws[0].job.completion: our runner runs init_script and commits a result: write completion: result",
        ),
        (
            "storage_providers:",
            "  - lambda: {name: next, init_script: b.sh, input: [{path: answers/tsv}]}\nstorage_providers:",
            "functions.aws[0].job.object: objects there start next; S3 notifies only one: change a key",
        ),
    ],
)
def test_objects_that_cannot_end_a_job_are_errors(old: str, new: str, said: str) -> None:
    text = SUPERVISOR.replace(old, new, 1)
    assert text != SUPERVISOR
    if "init_script: a.sh" in text:
        text = text.replace(f"image: {IMAGE}, create_image: false, ", "")
    assert said in errors(text, AWS)


def test_an_image_is_not_started_off_aws() -> None:
    assert errors(SUPERVISOR, LOCAL) == [
        "functions.aws[0].lambda.container.image: no container is started here, so an image's own command is not run"
    ]
