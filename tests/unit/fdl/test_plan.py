"""Plans: golden texts, no steps after applying, resuming after interruptions, foreign resources."""
# ruff: noqa: E501  (one line per step, as people see it)

import functools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corekit.budget import Budget
from corekit.decode import decode
from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from fdl.parse import parse
from fdl.plan.desired import DesiredFunction, desired
from fdl.plan.plan import Action, Observed, Plan, Step, plan, removal
from fdl.plan.resources import (
    Bucket,
    EventSource,
    FunctionResource,
    InvokeConfig,
    Ledger,
    Notification,
    QueueResource,
    Record,
    Resource,
    Schedule,
    key_of,
)
from orchgpu.core.function import Function
from tests.unit.fdl.definitions import AWS, CODE, LOCAL

BLAST = """\
functions:
  aws:
  - lambda:
      name: blast
      init_script: run.sh
      container: {environment: {Variables: {TOP: 5}}}
      output: [{path: answers/tsv, suffix: [.tsv]}]
    gpu: {memory: 1GiB, kinds: cpu}
    job: {input: {path: queries/in, suffix: [.fasta, .fa]}}
"""
PLAIN = """\
functions:
  aws:
  - lambda:
      name: grep
      init_script: grep.sh
      input: [{storage_provider: s3, path: texts/in}]
      output: [{storage_provider: s3, path: texts/out}]
"""
NO_JOBS = "    job: none\n"
WORDS = (
    BLAST + PLAIN.split("aws:\n")[1],
    BLAST,
    PLAIN,
    PLAIN + NO_JOBS,
    BLAST.replace("queries/in", "queries/other"),
    BLAST.replace("name: blast", "name: search").replace("queries/in", "queries/search"),
    BLAST.replace(", .fa]", "]").replace("answers", "results"),
)


@functools.cache
def wanted(text: str) -> list[DesiredFunction]:
    return [desired(f, LOCAL, CODE, Budget()) for f in parse(text).functions.aws]


class World:
    """A cloud as plain values: what steps do to it, and what is seen of it."""

    def __init__(self, *foreign: Resource) -> None:
        self.resources = {key_of(r): r for r in foreign}
        self.ledgers: dict[str, Ledger] = {}
        self.filled: tuple[str, ...] = ()
        self.messages: dict[str, int] = {}

    def observed(self) -> Observed:
        queues = [r.name for r in self.resources.values() if isinstance(r, QueueResource)]
        rules = [r for r in self.resources.values() if isinstance(r, Notification)]
        return Observed(
            resources=dict(self.resources),
            rules=tuple(rules),
            ledgers=dict(self.ledgers),
            queue_urls={name: f"http://sqs/{name}" for name in queues},
            filled=self.filled,
            messages=self.messages,
        )

    def plan(self, text: str) -> Plan:
        return plan(wanted(text), self.observed(), LOCAL)

    def apply(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self._apply(step)

    def _apply(self, step: Step) -> None:
        resource = step.resource
        if isinstance(resource, Ledger):
            if step.action is Action.DELETE:
                del self.ledgers[resource.name]
            else:
                self.ledgers[resource.name] = resource
        elif step.action is Action.DELETE:
            assert resource.name not in self.filled
            del self.resources[step.key]
        else:
            if isinstance(resource, Record):
                resource = resource.resolved(self.observed().queue_urls)
                decode(Function, resource.body)
            if isinstance(resource, Notification):
                self._check_rule(resource)
            self.resources[step.key] = resource

    def _check_rule(self, rule: Notification) -> None:
        others = [r for r in self.resources.values() if isinstance(r, Notification)]
        assert not any(rule.overlaps(o) for o in others if key_of(o) != key_of(rule))
        assert f"bucket/{rule.bucket}" in self.resources


def test_a_change_names_only_the_changed_fields() -> None:
    """The record's urls are filled in when it is written; they are the same as before."""
    world = World()
    world.apply(world.plan(BLAST).steps)
    changed = BLAST.replace("name: blast\n", "name: blast\n      memory: 1024\n")
    steps = {step.resource.kind: step for step in world.plan(changed).steps}
    assert set(steps) == {"function", "record"}
    old, new = steps["record"].changes()["body"]
    assert isinstance(old, dict)
    assert isinstance(new, dict)
    assert [key for key in old if old[key] != new[key]] == ["memory_mib", "revision"]
    assert steps["record"].sentence() == "~ record blast: body (memory_mib, revision)"


def test_rules_of_a_bucket_go_out_together() -> None:
    world = World()
    world.apply(world.plan(BLAST).steps)
    steps = removal(["blast"], world.observed(), LOCAL).steps
    rules = [step for step in steps if isinstance(step.resource, Notification)]
    for step in rules:
        bucket = step.resource.name.partition("/")[0]
        others = [s.resource for s in rules if s is not step]
        assert step.deleted_with == tuple(r for r in others if r.name.startswith(f"{bucket}/"))
    assert any(step.deleted_with for step in rules)


def test_golden_plan_of_a_function_that_borrows_a_device() -> None:
    assert World().plan(BLAST).text().splitlines() == [
        "  + bucket orchgpu-state-000000000000-us-east-1",
        "  + ledger blast",
        "  + bucket queries",
        "  + bucket blast-intermediate",
        "  + bucket answers",
        f"  + package {LOCAL.state_bucket}/{CODE.sha256}",
        "  + expiry answers/orchgpu-blast-uploads",
        "  + expiry blast-intermediate/orchgpu-blast-staging",
        "  + expiry blast-intermediate/orchgpu-blast-results",
        "  + expiry blast-intermediate/orchgpu-blast-attempts",
        "  + queue blast-dlq",
        "  + queue blast-jobs",
        "  + queue blast-done",
        "  + function blast",
        "  + invoke-config blast",
        "  + permission blast/orchgpu-s3-blast-intermediate",
        "  + notification queries/orchgpu-blast-jobs",
        "  + notification queries/orchgpu-blast-jobs-2",
        "  + notification blast-intermediate/orchgpu-blast-staging",
        "  + notification blast-intermediate/orchgpu-blast-results",
        "  + record blast",
        "plan: 21 to create, 0 to change, 0 to delete",
    ]


def test_golden_plan_of_a_plain_scar_function() -> None:
    assert World().plan(PLAIN).text().splitlines() == [
        "  + bucket orchgpu-state-000000000000-us-east-1",
        "  + ledger grep",
        "  + bucket texts",
        "  + bucket grep-intermediate",
        f"  + package {LOCAL.state_bucket}/{CODE.sha256}",
        "  + expiry texts/orchgpu-grep-uploads",
        "  + expiry grep-intermediate/orchgpu-grep-staging",
        "  + expiry grep-intermediate/orchgpu-grep-results",
        "  + expiry grep-intermediate/orchgpu-grep-attempts",
        "  + queue grep-dlq",
        "  + queue grep-jobs",
        "  + queue grep-done",
        "  + function grep",
        "  + invoke-config grep",
        "  + permission grep/orchgpu-s3-grep-intermediate",
        "  + notification texts/orchgpu-grep-jobs",
        "  + notification grep-intermediate/orchgpu-grep-staging",
        "  + notification grep-intermediate/orchgpu-grep-results",
        "  + notification grep-intermediate/orchgpu-grep-attempts",
        "  + record grep",
        "plan: 20 to create, 0 to change, 0 to delete",
    ]


def test_golden_plan_of_a_function_without_jobs() -> None:
    made = World().plan(PLAIN + NO_JOBS)
    assert made.text().splitlines() == [
        "  + bucket orchgpu-state-000000000000-us-east-1",
        "  + ledger grep",
        "  + bucket texts",
        f"  + package {LOCAL.state_bucket}/{CODE.sha256}",
        "  + expiry texts/orchgpu-grep-uploads",
        "  + queue grep-dlq",
        "  + function grep",
        "  + invoke-config grep",
        "  + permission grep/orchgpu-s3-texts",
        "  + notification texts/orchgpu-grep-invoke",
        "plan: 10 to create, 0 to change, 0 to delete",
    ]
    (notice,) = made.notices
    assert notice.startswith("grep: its objects become no jobs")


def test_a_function_without_jobs_sends_what_it_cannot_run_to_its_dead_letters() -> None:
    (function,) = wanted(PLAIN + NO_JOBS)
    by_key = {key_of(r): r for r in function.resources}
    assert by_key["invoke-config/grep"] == InvokeConfig(
        name="grep", retries=2, event_age_s=21600, on_failure_arn=LOCAL.queue_arn("grep-dlq")
    )
    queue = by_key["queue/grep-dlq"]
    assert isinstance(queue, QueueResource)
    assert queue.policy["Statement"][0]["Action"] == "sqs:SendMessage"


def test_the_record_of_a_function_without_a_device_asks_for_none() -> None:
    limited = PLAIN.replace("init_script", "reserved_concurrency: 4\n      init_script")
    (function,) = wanted(limited)
    (record,) = [r for r in function.resources if isinstance(r, Record)]
    assert record.body["request"]["count"] == 0
    assert record.body["concurrency_max"] == 4, "no more jobs than Lambda would run at once"


@pytest.mark.parametrize(("before", "after"), [("", "NO_JOBS"), ("NO_JOBS", "")])
def test_changing_between_jobs_and_none_removes_only_what_deploy_made(
    before: str, after: str
) -> None:
    world = World()
    world.apply(world.plan(PLAIN + (NO_JOBS if before else "")).steps)
    steps = world.plan(PLAIN + (NO_JOBS if after else "")).steps
    deleted = [step.key for step in steps if step.action is Action.DELETE]
    rules = [key for key in deleted if key.startswith("notification/texts")]
    assert rules == [f"notification/texts/orchgpu-grep-{'invoke' if before else 'jobs'}"]
    made = [step.key for step in steps if step.action is Action.CREATE]
    new = f"notification/texts/orchgpu-grep-{'invoke' if after else 'jobs'}"
    order = [step.key for step in steps]
    assert new in made
    assert order.index(rules[0]) < order.index(new), "S3 takes one rule for an object"
    assert "queue/grep-dlq" not in (*deleted, *made), "its letters stay"


def test_the_resources_of_a_job_function() -> None:
    (function,) = wanted(BLAST)
    by_key = {key_of(r): r for r in function.resources}
    jobs = by_key["queue/blast-jobs"]
    assert isinstance(jobs, QueueResource)
    assert (jobs.retention_s, jobs.visibility_s, jobs.receives_max) == (14 * 86400, 120, 1000)
    assert jobs.dead_letter_arn == "arn:aws:sqs:us-east-1:000000000000:blast-dlq"
    assert jobs.policy["Statement"][0]["Condition"] == {
        "ArnEquals": {"aws:SourceArn": "arn:aws:s3:::queries"},
        "StringEquals": {"aws:SourceAccount": "000000000000"},
    }
    assert by_key["invoke-config/blast"] == InvokeConfig(
        name="blast", retries=0, event_age_s=60, on_failure_arn=LOCAL.queue_arn("blast-done")
    )
    staging = by_key["notification/blast-intermediate/orchgpu-blast-staging"]
    assert isinstance(staging, Notification)
    assert (staging.prefix, staging.target_arn) == ("staging/blast/", LOCAL.function_arn("blast"))
    code = by_key["function/blast"]
    assert isinstance(code, FunctionResource)
    assert code.variables["ORCHGPU_SCRIPT"] == "script/run.sh"
    assert "TOP" not in str(code.variables), "the user's variables travel in the envelope"


def test_an_image_function_on_a_local_cloud_carries_its_package_by_tag() -> None:
    text = PLAIN.replace(
        "init_script", "runtime: image\n      container: {image: a/b}\n      init_script"
    )
    (function,) = wanted(text)
    code = next(r for r in function.resources if isinstance(r, FunctionResource))
    assert (code.image, code.runtime, code.package) == ("a/b", "", "")
    assert code.handler == "lambda_functions.gpu_runner.handler.handle"
    assert code.tags["orchgpu:package"] == f"s3://{LOCAL.state_bucket}/packages/{CODE.sha256}.zip"
    assert function.notices == (
        "grep: this cloud starts no containers; the script runs on this machine's files, not in a/b",
    )


def test_uploads_that_no_search_would_find_are_announced_on_aws() -> None:
    """S3 applies new rules late, and only functions with a queue have a search for lost uploads."""
    text = PLAIN + NO_JOBS
    functions = [desired(f, AWS, CODE, Budget()) for f in parse(text).functions.aws]
    first = plan(functions, Observed(), AWS)
    (notice,) = [one for one in first.notices if "no jobs" not in one]
    assert notice.startswith("grep: S3 applies new rules within about five minutes")
    assert "an upload to texts before then" in notice
    assert not any("S3 applies" in one for one in World().plan(text).notices), (
        "a local cloud applies rules at once"
    )


@pytest.mark.parametrize("text", WORDS)
def test_a_resource_as_desired_needs_no_step(text: str) -> None:
    world = World()
    world.apply(world.plan(text).steps)
    assert world.plan(text).empty
    assert world.plan(text).text() == "plan: nothing to do"


@pytest.mark.parametrize("text", WORDS)
def test_a_deploy_that_failed_at_any_step_is_finished_by_the_next(text: str) -> None:
    whole = World()
    steps = whole.plan(text).steps
    whole.apply(steps)
    for cut in range(len(steps)):
        world = World()
        world.apply(steps[:cut])
        world.apply(world.plan(text).steps)
        assert world.plan(text).empty, cut
        assert (world.resources, world.ledgers) == (whole.resources, whole.ledgers), cut


def test_only_buckets_of_input_and_output_are_versioned() -> None:
    """A fresh versioned bucket may answer 404 for an envelope that was just written."""
    world = World()
    world.apply(world.plan(BLAST).steps)
    buckets = [r for r in world.resources.values() if isinstance(r, Bucket)]
    plain = {bucket.name for bucket in buckets if not bucket.versioned}
    assert plain == {LOCAL.state_bucket, "blast-intermediate"}
    # one that an older version made stays as it is, and is not shown as changed
    (made,) = [bucket for bucket in buckets if bucket.name == "blast-intermediate"]
    world.resources[key_of(made)] = replace(made, versioned=True)
    assert world.plan(BLAST).empty


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(WORDS), st.integers(0, 40)), min_size=1, max_size=6))
def test_a_deploy_that_was_cut_off_is_finished_by_the_next(cuts: list[tuple[str, int]]) -> None:
    """After any interruption deploy leads to the same world, and rm leaves only foreign resources."""
    foreign = Bucket(name="queries", versioned=False)
    rule = Notification(bucket="queries", id="theirs", target_arn="arn:x", prefix="elsewhere/")
    world = World(foreign, rule)
    for text, cut in cuts:
        world.apply(world.plan(text).steps[:cut])
    for text, _ in cuts:
        world.apply(world.plan(text).steps)
        assert world.plan(text).empty
    names = sorted(world.ledgers)
    world.apply(removal(names, world.observed(), LOCAL).steps)
    state = f"bucket/{LOCAL.state_bucket}"
    assert sorted(world.resources) == sorted([state, key_of(foreign), key_of(rule)])
    assert world.resources[key_of(foreign)] == foreign
    assert not world.ledgers
    assert removal(names, world.observed(), LOCAL).empty


def test_changes_are_shown_field_by_field_and_variables_by_name() -> None:
    world = World()
    world.apply(world.plan(PLAIN).steps)
    changed = PLAIN.replace(
        "init_script",
        "memory: 1024\n      environment: {Variables: {KEY: hush}}\n      init_script",
    )
    text = world.plan(changed).text()
    assert text.splitlines()[0] == "  ~ function grep: memory_mib 512 → 1024, variables (KEY)"
    assert "hush" not in text
    assert "hush" not in str(world.plan(changed).as_json())


def test_a_resource_that_left_the_file_is_deleted_unless_it_holds_data() -> None:
    world = World()
    world.apply(world.plan(BLAST).steps)
    moved = BLAST.replace("answers", "results")
    assert "  - bucket answers" in world.plan(moved).text().splitlines()
    world.filled = ("answers",)
    assert "  = bucket answers stays: it holds data" in world.plan(moved).text().splitlines()
    world.apply(world.plan(moved).steps)
    assert world.plan(moved).empty
    assert "bucket/answers" in world.resources


@pytest.mark.parametrize("key", ["function/blast", "queue/blast-jobs"])
def test_foreign_functions_and_queues_are_not_touched(key: str) -> None:
    theirs = next(r for r in wanted(BLAST)[0].resources if key_of(r) == key)
    with pytest.raises(AppError, match="was not made by orchgpu deploy") as caught:
        World(theirs).plan(BLAST)
    assert caught.value.code is ErrorCode.CONFLICT


def test_the_queue_of_another_function_is_not_taken_over() -> None:
    world = World()
    world.apply(world.plan(BLAST).steps)
    thief = BLAST.replace("name: blast", "name: thief").replace(
        "job: {", "job: {queue: blast-jobs, "
    )
    with pytest.raises(AppError, match="queue 'blast-jobs' exists and belongs to blast"):
        world.plan(thief.replace("queries/in", "queries/thief"))


def visits() -> DesiredFunction:
    """An orchestrator without a server of `blast`, as far as plans care."""
    function = FunctionResource(
        name="blast-orchestrate", role="r", memory_mib=1, timeout_s=1, runtime="r", handler="h"
    )
    source = EventSource(function=function.name, queue="blast-jobs", batch=1, concurrency_max=2)
    schedule = Schedule(name=function.name, every_min=1, function=function.name, role="r")
    return DesiredFunction(name=function.name, resources=(function, source, schedule))


def test_a_foreign_schedule_is_not_taken_over() -> None:
    theirs = next(one for one in visits().resources if isinstance(one, Schedule))
    with pytest.raises(AppError, match="schedule 'blast-orchestrate' exists and was not made"):
        plan([visits()], World(theirs).observed(), LOCAL)


def test_two_functions_of_a_plan_never_make_the_same_resource() -> None:
    text = BLAST.replace("name: blast", "name: blast-orchestrate")
    with pytest.raises(AppError, match="both make the function 'blast-orchestrate'") as caught:
        plan([*wanted(text), visits()], World().observed(), LOCAL)
    assert caught.value.code is ErrorCode.CONFLICT


def test_visits_do_not_replace_a_deployed_function_nor_it_them() -> None:
    text = BLAST.replace("name: blast", "name: blast-orchestrate")
    world = World()
    world.apply(world.plan(text).steps)
    with pytest.raises(AppError, match="another function 'blast-orchestrate' is deployed"):
        plan([visits()], world.observed(), LOCAL)
    world = World()
    world.apply(plan([visits()], world.observed(), LOCAL).steps)
    assert plan([visits()], world.observed(), LOCAL).empty
    with pytest.raises(AppError, match="another function 'blast-orchestrate' is deployed"):
        world.plan(text)


def test_an_intermediate_bucket_of_another_deployment_is_not_shared() -> None:
    world = World()
    world.apply(world.plan(BLAST).steps)
    other = BLAST.replace("name: blast", "name: other").replace("queries/in", "queries/other")
    with pytest.raises(AppError, match="the rule 'orchgpu-blast-results'"):
        world.plan(other.replace("job: {", "job: {intermediate: blast-intermediate, "))


def test_a_foreign_rule_for_the_same_objects_is_a_conflict_before_anything_is_done() -> None:
    rule = Notification(
        bucket="queries", id="theirs", target_arn="arn:x", prefix="in/", suffix=".fa"
    )
    with pytest.raises(AppError, match=r"'theirs' \(prefix 'in/', suffix '.fa'\) already takes"):
        World(Bucket(name="queries"), rule).plan(BLAST)
    other = replace(rule, suffix=".gz")
    assert not World(Bucket(name="queries"), other).plan(BLAST).empty


def test_rm_keeps_resources_of_another_function() -> None:
    world = World()
    world.apply(world.plan(BLAST).steps)
    world.apply(world.plan(PLAIN.replace("texts/in", "answers/x")).steps)
    done = removal(["blast"], world.observed(), LOCAL)
    assert [kept.key for kept in done.kept] == [
        "bucket/answers",
        f"package/{LOCAL.state_bucket}/{CODE.sha256}",
    ]
    world.apply(done.steps)
    assert world.plan(PLAIN.replace("texts/in", "answers/x")).empty


def test_rm_waits_for_jobs_but_not_for_completions() -> None:
    world = World()
    world.apply(world.plan(BLAST).steps)
    world.messages = {"blast-done": 7}
    assert removal(["blast"], world.observed(), LOCAL).steps[0].key == "record/blast"
    world.messages = {"blast-jobs": 2, "blast-dlq": 1}
    with pytest.raises(AppError, match=r"hold messages: blast-dlq \(1\), blast-jobs \(2\)"):
        removal(["blast"], world.observed(), LOCAL)
    assert not removal(["blast"], world.observed(), LOCAL, force=True).empty


def test_a_package_goes_through_the_bucket_that_the_file_names() -> None:
    deployment = "deployment: {bucket: uploads}\n      init_script"
    text = PLAIN.replace("init_script", deployment)
    world = World()
    first = world.plan(text)
    keys = [step.key for step in first.steps]
    assert keys.index("bucket/uploads") < keys.index(f"package/uploads/{CODE.sha256}")
    (code,) = [r for f in wanted(text) for r in f.resources if isinstance(r, FunctionResource)]
    assert code.code_at == ("uploads", f"packages/{CODE.sha256}.zip")
    world.apply(first.steps)
    assert world.plan(text).empty
