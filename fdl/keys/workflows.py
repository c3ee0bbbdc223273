"""The keys of `workflows:`: steps that are one run for each input of the first one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from corekit.values import replace
from fdl.keys.notify import NOTIFY
from fdl.model import Promise, Workflow
from fdl.schema.scalars import Duration, Number, Text
from fdl.schema.schema import Block, Key, ListOf, MapOf, Plain, Reading, Schema
from fdl.text.nodes import Node

#: An advance reads the results of all steps, so their number has a limit.
STEPS_MAX = 64
_NAME = r"[A-Za-z0-9_-]{1,64}"
_WHAT = "(letters, digits, - and _, up to 64)"

_PROMISE = Block(
    into=Promise,
    keys={
        "latency": Key(
            reader=Duration(),
            to="latency_s",
            about="From the upload of its input to the end of a run.",
        ),
        "cost": Key(
            reader=Number(high=1e6, unit="USD"), to="cost_usd", about="Of all steps of a run."
        ),
    },
)
WORKFLOW = Block(
    into=Workflow,
    keys={
        "steps": Key(
            reader=ListOf(
                item=Text(
                    pattern=_NAME, what=f"the name of a function or group {_WHAT}", short="names"
                ),
                items_max=STEPS_MAX,
                items_min=1,
            ),
            required=True,
            about="Functions, or groups, of this file. A step starts when all steps that write to"
            " its inputs have ended, with their files; one whose inputs got no file is skipped.",
        ),
        "deadline": Key(
            reader=Duration(),
            to="deadline_s",
            about="A run that has not ended this long after its input was stored is ended.",
            default="no limit",
        ),
        "slo": Key(
            reader=_PROMISE,
            about="A promise that is given or refused when a run starts; not enforced yet, so a"
            " deploy refuses it.",
            default="none",
        ),
        "notify": Key(
            reader=NOTIFY, about="Notified of the end of each run, at least once.", default="none"
        ),
        "gpu": Key(reader=Plain(), refused="steps share no sandbox yet: write `gpu:` at each one"),
        "sandbox": Key(
            reader=Plain(),
            refused="each step is a function of its own; for steps that share a sandbox and a"
            " device write `group: NAME` at them, and name the group in `steps`",
        ),
    },
)


_BY_NAME = MapOf(item=WORKFLOW, key_pattern=_NAME, key_what=f"the name of a workflow {_WHAT}")


@dataclass(frozen=True, slots=True)
class Workflows:
    """The block `workflows`: each element remembers its name and its path."""

    def read(self, node: Node, path: str, reading: Reading) -> tuple[Workflow, ...]:
        read: Mapping[str, Any] = _BY_NAME.read(node, path, reading)
        return tuple(
            replace(workflow, name=name, path=f"{path}.{name}") for name, workflow in read.items()
        )

    def describe(self) -> str:
        return _BY_NAME.describe()

    def schema(self) -> Schema:
        return _BY_NAME.schema()
