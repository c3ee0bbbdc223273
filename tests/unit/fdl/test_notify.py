"""`notify:`: reading, lint with its places, and the records."""
# ruff: noqa: E501  (one line per message, as people see it)

import pytest

from corekit.budget import Budget
from corekit.decode import decode
from corekit.errors import AppError
from fdl.lint.lint import lint
from fdl.parse import parse
from fdl.plan.desired import desired
from fdl.plan.groups import deployed
from fdl.plan.placeholders import at_place
from fdl.plan.resources import Record
from fdl.plan.workflows import desired_workflows
from orchgpu.core.function import Function
from orchgpu.core.notify import Target
from orchgpu.core.runs.workflow import Workflow
from orchgpu.permissions.model import Scope
from orchgpu.permissions.roles.orchestrator import ROLE
from tests.unit.fdl.definitions import AWS, CODE, LOCAL

TOPIC = "arn:aws:sns:eu-west-1:123456789012:ends"
FILE = """\
functions:
  aws:
  - lambda: {name: f, init_script: s, input: [{path: box/in}], output: [{path: box/mid}]}
    notify: [{queue: ends}, {webhook: 'https://hooks.example/x', secret: ssm:/hook}]
  - lambda: {name: g, init_script: s, input: [{path: box/mid}], output: [{path: box/out}]}
"""
RUNS = FILE + f"workflows:\n  w: {{steps: [f, g], notify: {{topic: '{TOPIC}'}}}}\n"


def records(text: str) -> dict[str, dict[str, object]]:
    document = parse(text, "f")
    functions = [at_place(one, LOCAL) for one in deployed(document)]
    made = [desired(one, LOCAL, CODE, Budget()) for one in functions]
    made += desired_workflows(document, functions, LOCAL, Budget())
    every = [one for wanted in made for one in wanted.resources]
    return {one.name: dict(one.body) for one in every if isinstance(one, Record)}


def test_a_record_has_the_targets() -> None:
    found = records(RUNS)
    urls = dict.fromkeys(("queue_url", "dead_letter_url", "completion_url"), "u")
    function = decode(Function, {**found["f"], **urls})
    assert function.notify == (
        Target(queue="ends"),
        Target(webhook="https://hooks.example/x", secret="ssm:/hook"),
    )
    workflow = decode(Workflow, {**found["w"], "queue_url": "u", "dead_letter_url": "u"})
    assert workflow.notify == (Target(topic=TOPIC),)


def test_a_target_may_take_events_of_cloudevents() -> None:
    text = FILE.replace("secret: ssm:/hook}", "format: cloudevents}")
    urls = dict.fromkeys(("queue_url", "dead_letter_url", "completion_url"), "u")
    function = decode(Function, {**records(text)["f"], **urls})
    plain, event = function.notify
    assert (plain.takes_events, event.takes_events) == (False, True)


def test_a_record_without_targets_is_as_before() -> None:
    assert "notify" not in records(RUNS)["g"]
    without = RUNS.replace(f", notify: {{topic: '{TOPIC}'}}", "")
    assert "notify" not in records(without)["w"]


def test_a_group_has_the_targets_of_its_steps_once() -> None:
    text = """\
functions:
  aws:
  - {lambda: {name: f, init_script: s, input: [{path: box/in}], output: [{path: box/mid}]}, group: g, notify: {queue: q}}
  - {lambda: {name: h, init_script: s, input: [{path: box/mid}], output: [{path: box/out}]}, group: g, notify: [{queue: q}, {queue: r}]}
"""
    [made] = deployed(parse(text, "f"))
    assert [one.queue for one in made.notify] == ["q", "r"]


@pytest.mark.parametrize(
    ("notify", "message"),
    [
        ("{queue: a, webhook: 'https://x.example/'}", "write exactly one of"),
        ("[{}]", "write exactly one of"),
        ("{queue: a, secret: ssm:/k}", "`secret` signs webhooks"),
        ("{webhook: 'ftp://x.example/'}", "is not a URL that begins with https://"),
        ("{webhook: 'https://u:p@x.example/'}", "no user and password"),
        ("{webhook: 'https://[::1/'}", "is not valid"),
        ("{webhook: 'http://169.254.169.254/latest'}", "link-local or metadata address"),
        ("{webhook: 'http://[fd00:ec2::254]/'}", "link-local or metadata address"),
        ("{topic: ends}", "is not the ARN of a standard SNS topic"),
        ("{queue: ends.fifo}", "is not the name of a standard SQS queue"),
    ],
)
def test_a_wrong_target_is_refused(notify: str, message: str) -> None:
    text = FILE.replace(
        "[{queue: ends}, {webhook: 'https://hooks.example/x', secret: ssm:/hook}]", notify
    )
    with pytest.raises(AppError) as error:
        parse(text, "f")
    assert message in error.value.message
    assert "f:4:" in error.value.message


def test_a_secret_in_clear_is_not_shown() -> None:
    with pytest.raises(AppError) as error:
        parse(FILE.replace("ssm:/hook", "whsec_MfKQ9r8"), "f")
    assert "whsec" not in str(error.value)


def messages(text: str) -> list[str]:
    return [note.message for note in lint(parse(text, "f"), place=LOCAL) if ".notify" in note.path]


def test_lint_names_ends_that_there_are_not_and_queues_of_the_file() -> None:
    assert messages(RUNS) == []
    assert messages(RUNS.replace("{queue: ends}", "{queue: w-runs}")) == [
        "w-runs is a queue of this file, which the orchestrator reads itself"
    ]
    plain = FILE.replace("    notify", "    job: none\n    notify")
    assert "only jobs have ends, and this function has no jobs" in messages(plain)
    assert messages(FILE.replace("https:", "http:")) == [
        "http is not encrypted on its way; write https"
    ]
    assert messages(FILE.replace("[{queue: ends},", "[{queue: a}, {queue: a},")) == [
        "is listed twice; keep one"
    ]


def test_the_orchestrator_may_reach_its_targets() -> None:
    functions = tuple(at_place(one, AWS) for one in deployed(parse(RUNS, "f")))
    found = {
        one.sid: one.resources for one in ROLE.statements(Scope(place=AWS, functions=functions))
    }
    assert found["Publish"] == (TOPIC,)
    assert found["SigningParameters"] == (f"arn:aws:ssm:{AWS.region}:{AWS.account}:parameter/hook",)
    assert {AWS.queue_arn("ends"), AWS.queue_arn("f-done")} <= set(found["Send"])
    assert AWS.queue_arn("g-done") not in found["Send"]
    assert "SigningSecrets" not in found
