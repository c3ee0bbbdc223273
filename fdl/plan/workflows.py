"""Workflow → its cloud resources: queues, the rule of the first step's input, the record. Pure.

Only that input notifies anything: files between steps are delivered by the orchestrator.
"""

from __future__ import annotations

from collections.abc import Sequence

from corekit.budget import Budget
from corekit.decode import encode
from fdl.graph.graph import feeding, order
from fdl.model import RETENTION_S, Document, Function, Workflow
from fdl.plan import resources as kinds
from fdl.plan.desired import DesiredFunction, buckets_of, notify_of, results_days
from fdl.plan.functions import owners_of
from fdl.plan.resources import QUEUE_URL, DeployTarget, Resource, digest
from fdl.plan.tags import workflow_tags
from fdl.plan.uploads import from_s3, notification_rules, policy_document


def queues_of(workflow: str) -> tuple[str, str]:
    """Names of the queue of a workflow's inputs and ends of steps, and of its dead letters."""
    return f"{workflow}-runs", f"{workflow}-runs-dlq"


def steps_of(workflow: Workflow, functions: Sequence[Function]) -> tuple[Function, ...]:
    """The deployed steps, every one after those that feed it."""
    return order([function for function in functions if function.workflow == workflow.name])


def desired_workflows(
    document: Document, functions: Sequence[Function], place: DeployTarget, budget: Budget
) -> list[DesiredFunction]:
    """The resources of the workflows of a file. `functions`: those deployed, at their place."""
    return [
        desired_workflow(workflow, steps_of(workflow, functions), place, budget)
        for workflow in document.workflows
    ]


def desired_workflow(
    workflow: Workflow, steps: Sequence[Function], place: DeployTarget, budget: Budget
) -> DesiredFunction:
    """The resources of one workflow, beside those of its steps."""
    first, (source,) = steps[0], steps[0].user_input
    runs, dead = queues_of(workflow.name)
    stem = f"orchgpu-{workflow.name}-runs"
    parts: list[Resource] = [
        kinds.Expiry(
            bucket=first.intermediate.bucket, id=stem, prefix="runs/", days=results_days(first)
        ),
        *_queues(workflow, first, place, budget),
        *notification_rules(stem, (source,), place.queue_arn(runs)),
    ]
    body: dict[str, object] = {
        "name": workflow.name,
        "queue_url": {QUEUE_URL: runs},
        "dead_letter_url": {QUEUE_URL: dead},
        "bucket": first.intermediate.bucket,
        "input_bucket": source.path.bucket,
        "input_prefix": source.path.prefix,
        "input_suffixes": list(source.suffixes),
        "steps": [_step(step, steps) for step in steps],
        "deadline_s": workflow.deadline_s,
        **({} if workflow.max_cost_usd is None else {"max_cost_usd": workflow.max_cost_usd}),
        **({} if workflow.slo is None else {"slo": encode(workflow.slo)}),
        "owners": {
            name: owners_of(step).get(name) or place.account
            for step in steps
            for name in buckets_of(step)
        },
    }
    body |= notify_of(workflow.notify)
    body["revision"] = digest([digest(parts), body])
    record = kinds.WorkflowRecord(name=workflow.name, bucket=place.state_bucket, body=body)
    return DesiredFunction(name=workflow.name, resources=(*parts, record))


def _queues(
    workflow: Workflow, first: Function, place: DeployTarget, budget: Budget
) -> tuple[Resource, Resource]:
    runs, dead = queues_of(workflow.name)
    tags = workflow_tags(workflow.name, first)
    dead_letters = kinds.QueueResource(
        name=dead,
        retention_s=round(RETENTION_S),
        visibility_s=max(1, round(budget.visibility_s)),
        tags=tags,
    )
    queue = kinds.QueueResource(
        name=runs,
        retention_s=round(RETENTION_S),
        visibility_s=max(1, round(budget.visibility_s)),
        dead_letter_arn=place.queue_arn(dead),
        receives_max=budget.max_receive_count,
        policy=policy_document(from_s3(first, place, runs, first.user_input[0].path.bucket)),
        tags=tags,
    )
    return dead_letters, queue


def _step(step: Function, steps: Sequence[Function]) -> dict[str, object]:
    feeds = [
        {
            "step": writer.name,
            "bucket": source.path.bucket,
            "prefix": source.path.prefix,
            "suffixes": list(source.suffixes),
            **({"when": source.when} if source.when else {}),
        }
        for writer, source in feeding(step, steps)
    ]
    return {"name": step.name, "feeds": feeds, "each": any(s.each for s in step.user_input)}
