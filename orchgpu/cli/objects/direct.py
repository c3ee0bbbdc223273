"""Functions that no orchestrator serves, as steps without a device: objects start them directly."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corekit.errors import AppError, ErrorCode
from fdl.plan.resources import Notification, Record

if TYPE_CHECKING:
    from pathlib import Path

    from fdl.plan.resources import Ledger
    from orchgpu.cli.cloud import JobCloud


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """One of them, as it is deployed."""

    name: str
    inputs: tuple[Notification, ...]  #: the rules by which S3 starts it

    @property
    def places(self) -> list[str]:
        """Where uploads start it, as `s3://bucket/prefix`."""
        return list(dict.fromkeys(f"s3://{rule.bucket}/{rule.prefix}" for rule in self.inputs))

    def takes(self, file: Path) -> bool:
        """Whether S3 would start it for a file of that name."""
        return any(file.name.endswith(rule.suffix) for rule in self.inputs)


def plain(cloud: JobCloud, name: str) -> Plain | None:
    """The deployed function of that name, unless there is none or it is an orchestrator's."""
    ledger = None if name in cloud.served() else cloud.ledger(name)
    if ledger is None or f"{Record.kind}/{name}" in ledger.created:
        return (
            None  # with a record: a deploy that was cut, or a removal; it is to be deployed again
        )
    return Plain(name=name, inputs=_rules(cloud, ledger))


def plains(cloud: JobCloud) -> list[Plain]:
    """All of them, by name."""
    served = cloud.served()
    found = (plain(cloud, name) for name in cloud.deployed() if name not in served)
    return [one for one in found if one is not None]


def outputs(cloud: JobCloud, function: Plain) -> list[tuple[str, str]]:
    """Bucket and prefix of each place it writes to; none for code that our runner does not run."""
    try:
        said = json.loads(cloud.variables(function.name).get("ORCHGPU_OUTPUTS", "[]"))
        return list(dict.fromkeys((str(one["bucket"]), str(one["prefix"])) for one in said))
    except AppError as error:
        if error.code is not ErrorCode.NOT_FOUND:
            raise
        return []  # the function itself is gone: `doctor` says so
    except (ValueError, KeyError, TypeError):
        return []  # somebody changed it


def _rules(cloud: JobCloud, ledger: Ledger) -> tuple[Notification, ...]:
    from orchgpu.deploy.aws.storage import Notifications

    rules = Notifications(cloud.s3)
    made = [key.partition("/") for key in ledger.created]
    names = [name for kind, _, name in made if kind == Notification.kind]
    buckets = dict.fromkeys(name.partition("/")[0] for name in names)
    found = (rule for bucket in buckets for rule in rules.observe(bucket))
    return tuple(rule for rule in found if rule.name in names)
