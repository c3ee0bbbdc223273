"""The keys of `workflows:`: steps that are one run for each input of the first one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from corekit.values import replace
from fdl.keys.jobs import COST_USD_MIN, GPU
from fdl.keys.notify import NOTIFY
from fdl.keys.promises import SLO
from fdl.model import Gpu, Workflow
from fdl.schema.scalars import Choice, Duration, Number, Text
from fdl.schema.schema import Block, Key, ListOf, MapOf, Reading, Schema
from fdl.text.nodes import Node

#: An advance reads the results of all steps, so their number has a limit.
STEPS_MAX = 64
_NAME = r"[A-Za-z0-9_-]{1,64}"
_WHAT = "(letters, digits, - and _, up to 64)"


@dataclass(frozen=True, slots=True)
class _AsOfFunction:
    """`gpu:` with the keys that it has at a function, which the reference lists there."""

    def read(self, node: Node, path: str, reading: Reading) -> Gpu | None:
        return GPU.read(node, path, reading)

    def describe(self) -> str:
        return "as `gpu:` of a function"

    def schema(self) -> Schema:
        return GPU.schema()


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
            reader=SLO,
            about="The objectives of each run: it is promised when its input arrives, or it ends"
            " as REJECTED before any step begins. The scheduler's policy must be `slo`.",
            default="none",
        ),
        "max_cost": Key(
            reader=Number(low=COST_USD_MIN, high=1e6, unit="USD"),
            to="max_cost_usd",
            about="A run ends as FAILED (MAX_COST) when its jobs have cost so much; each job gets"
            " what is left when it starts as its own cap.",
            default="no limit",
        ),
        "notify": Key(
            reader=NOTIFY, about="Notified of the end of each run, at least once.", default="none"
        ),
        "sandbox": Key(
            reader=Choice(("own", "shared")),
            about="`shared`: the steps are one function of the workflow's name, as a `group` is:"
            " one job, one lease, files between steps without S3, and a folder RUN_DIR that all"
            " of them see.",
            default="own",
        ),
        "gpu": Key(
            reader=_AsOfFunction(),
            about="With `sandbox: shared`: its lease has this beside the sum of its steps.",
            default="none",
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
