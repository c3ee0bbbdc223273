"""Rebuilding the cloud from its state log at start."""

from __future__ import annotations

import logging

from corekit.aio.newer import warn_ignored
from corekit.decode import decode, passing_over
from local_cloud.model.cloud import Cloud
from local_cloud.model.recorder import Recorded
from local_cloud.model.s3.notifications import Rule
from local_cloud.server.state_log import StateLog

logger = logging.getLogger(__name__)


def restore(cloud: Cloud, state: StateLog, now_s: float) -> None:
    """Fill an empty cloud from `state`. Interrupted runs start again.

    Fields of a newer version are ignored with a warning; they stay in the log until their key is
    written again.
    """
    with passing_over() as passed:
        _restore(cloud, state, now_s)
    warn_ignored(logger, passed)


def _restore(cloud: Cloud, state: StateLog, now_s: float) -> None:
    for (name,), value in state.items("bucket"):
        bucket = cloud.adopt_bucket(name, value["created_at_s"])
        bucket.versioning = value["versioning"]
        bucket.location = value.get("location", "")
        bucket.documents = dict(value["documents"])
    _restore_objects(cloud, state)
    for (name,), rules in state.items("notification"):
        cloud.restore_rules(name, [decode(Rule, fields) for fields in rules])
    for (name,), value in state.items("queue"):
        queue = cloud.queues.restore(
            name, value["created_at_s"], value["attributes"], dict(value["tags"])
        )
        queue.modified_at_s = value["modified_at_s"]
    for (name, message), fixed in state.items("message"):
        moving = state.get(f"receipt/{name}/{message}") or {"visible_at_s": fixed["sent_at_s"]}
        cloud.queues.get(name).restore(now_s, fixed, moving)
    for _, value in state.items("role"):
        cloud.roles.restore(value)
    for _, value in state.items("parameter"):
        cloud.parameters.restore(value)
    for _, value in state.items("secret"):
        cloud.secrets.restore(value)
    for _, value in state.items("function"):
        cloud.functions.restore(value)
    for _, value in state.items("schedule"):
        cloud.schedules.restore(value)
    for _, value in state.items("mapping"):
        cloud.event_sources.restore(value)
    for (name, request), value in state.items("invocation"):
        cloud.functions.get(name).invocations.restore(now_s, request, value)


def _restore_objects(cloud: Cloud, state: StateLog) -> None:
    versions = sorted(
        ((path[0], value) for path, value in state.items("object")),
        key=lambda item: str(item[1]["sequencer"]),
    )
    for name, value in versions:
        cloud.seen_sequencer(cloud.bucket(name).restore(value).sequencer)
    parts: list[tuple[list[str], Recorded]] = []
    for path, value in state.items("upload"):
        if len(path) == 2:
            cloud.bucket(path[0]).uploads.restore(path[1], value)
        else:
            parts.append((path, value))
    for path, value in parts:
        cloud.bucket(path[0]).uploads.restore_part(path[1], value)
