"""The key `schedule:`: times at which an object is put into the input of a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from corekit.cron import aws_cron, zone_of
from corekit.errors import AppError, invalid
from fdl.keys.aws import ROLE
from fdl.scheduled import DEFAULT_NAME, Scheduled
from fdl.schema.scalars import Text
from fdl.schema.schema import Block, Key, ListOf, Reading, Schema
from fdl.text.nodes import Node

#: Each is a schedule of EventBridge.
SCHEDULES_MAX = 16


@dataclass(frozen=True, slots=True)
class _Checked:
    """A text that a function refuses by raising INVALID."""

    text: Text
    check: Callable[[str], object]

    def read(self, node: Node, path: str, reading: Reading) -> str:
        found = self.text.read(node, path, reading)
        try:
            self.check(found)
        except AppError as error:
            raise reading.error(node, path, error.message) from None
        return found

    def describe(self) -> str:
        return self.text.describe()

    def schema(self) -> Schema:
        return self.text.schema()


def _scheduled(*, input: str = "", input_file: str = "", **more: str) -> Scheduled:  # noqa: A002
    """Raises INVALID for an object that is given twice."""
    if input and input_file:
        raise invalid("`input` and `input_file` are the same object; keep one")
    return Scheduled(input=input, input_file=input_file, **more)


SCHEDULE = ListOf(
    item=Block(
        into=_scheduled,
        defaults=Scheduled,
        short="cron",
        keys={
            "cron": Key(
                reader=_Checked(Text(what="a cron expression", short="five fields"), aws_cron),
                required=True,
                about="Minute, hour, day of the month, month, day of the week, as cron has them;"
                " one of the two days is `*`.",
            ),
            "timezone": Key(
                reader=_Checked(Text(what="a time zone", short="an IANA name"), zone_of),
                about="The clocks that `cron` means. A time that a change of clocks leaves out has"
                " no run, one that it repeats has one.",
            ),
            "name": Key(
                reader=Text(
                    pattern=r"[A-Za-z0-9_.-]{1,40}",
                    what="a name (letters, digits, ., - and _, up to 40)",
                    short="letters, digits, ., - and _, up to 40",
                ),
                about="`FUNCTION-NAME` is the schedule for `orchgpu schedule` and in EventBridge.",
                default=f"`{DEFAULT_NAME}`",
            ),
            "input": Key(
                reader=Text(lines=True, free=True),
                about="The text of the object; `<aws.scheduler.scheduled-time>` becomes its time.",
                default="JSON with the name and the time of the run",
            ),
            "input_file": Key(
                reader=Text(what="the path of a text file", short="a path"),
                about="A file beside the definition with the text of the object.",
                default="none",
            ),
            "role": Key(
                reader=ROLE,
                about="ARN of the role by which EventBridge puts the object.",
                default="one is made, as by `iam: {create: true}`",
            ),
        },
    ),
    one=True,
    items_max=SCHEDULES_MAX,
)
