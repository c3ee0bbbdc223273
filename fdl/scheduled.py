"""One element of `schedule:`: at each of its times an object is put into the function's input."""

from __future__ import annotations

from dataclasses import dataclass

#: Of an element without a name.
DEFAULT_NAME = "schedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """`input` and `input_file` exclude each other; without both the object names its time."""

    cron: str  #: five fields, which EventBridge's form can express
    timezone: str = "UTC"  #: IANA name
    name: str = DEFAULT_NAME  #: unique in its function
    input: str = ""  #: the object
    input_file: str = ""  #: a text beside the definition that is the object
    role: str = ""  #: ARN of the role that puts; "" = one is made
