"""The options of a request: flags of `ssgm` (also in its classic form), keys of `gpu:` in the FDL,
the table in `docs/reference/ssgm.md`.

The key of an option is the field of `Request` without its unit; its flag has dashes. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from corekit.decode import decode
from corekit.errors import AppError, invalid
from corekit.units import (
    MemorySize,
    parse_duration_s,
    parse_memory_mib,
    parse_memory_size,
    parse_percent,
)
from gpu_scheduler.constraints import constraint_problem, parse_constraint
from gpu_scheduler.data_names import reference_problem
from gpu_scheduler.model import Advance, Batch, DeviceKind, Placement, Request, Sharing

#: A function from the text of one value to the value, of the type of the option's field; it raises
#: INVALID.
Parse = Callable[[str], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOption:
    """One option of a request."""

    key: str  #: as in the FDL: `compute_guarantee`
    help: str  #: one sentence
    parse: Parse
    unit: str = ""  #: suffix of the field of `Request`: `_pct`
    percent_field: str = ""  #: field of a value in percent; "" = none
    name: str = ""  #: of the field of `Request`, when it is not the key with the unit
    metavar: str = ""  #: placeholder of the value in help
    example: str = ""  #: a valid value
    short: str = ""  #: one-letter flag, as SSGM has it
    many: bool = False  #: a list in order of preference: commas, or the flag again
    separator: str = ","  #: between the items of a list
    switch: bool = False  #: a flag without a value

    @property
    def field(self) -> str:
        """`compute_guarantee_pct`"""
        return self.name or self.key + self.unit

    @property
    def flag(self) -> str:
        """`--compute-guarantee`"""
        return "--" + self.key.replace("_", "-")


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise invalid(f"{text!r} is not an integer") from None


def one_of(values: type[StrEnum]) -> Parse:
    """A function that parses a member of an enum."""

    def parse(text: str) -> StrEnum:
        try:
            return values(text.strip().lower())
        except ValueError:
            raise invalid(f"{text!r} is not one of {', '.join(values)}") from None

    return parse


def _constraint(text: str) -> str:
    if (problem := constraint_problem(text)) is not None:
        raise invalid(problem)
    return str(parse_constraint(text))


def _reference(text: str) -> str:
    if (problem := reference_problem(text.strip())) is not None:
        raise invalid(problem)
    return text.strip()


def _batch(text: str) -> Batch:
    wait_ms, _, items = text.partition(":")
    try:
        rules = {"wait_ms": float(wait_ms), **({"size_max": int(items)} if items else {})}
    except ValueError:
        raise invalid(f"{text!r} is not a wait in ms with a number of items, as 5:32") from None
    return decode(Batch, {"joins": True, **rules}, "batch")


def _advance(text: str) -> Advance:
    wait_s, _, late_pct = text.partition(":")
    try:
        terms = {"wait_s": float(wait_s), **({"late_pct": float(late_pct)} if late_pct else {})}
    except ValueError:
        raise invalid(f"{text!r} is not a wait in seconds with a percentage, as 30:10") from None
    return decode(Advance, terms, "advance")


def _name(text: str) -> str:
    if not text.strip():
        raise invalid("the value is empty")
    return text.strip()


_COUNT_AND_KIND = (
    RequestOption(
        key="count",
        short="-g",
        metavar="N",
        parse=_whole,
        example="2",
        help="Number of devices; all of them are granted, or none.",
    ),
    RequestOption(
        key="kinds",
        metavar="KIND",
        many=True,
        parse=one_of(DeviceKind),
        example="cuda,opencl",
        help="cuda, opencl, cpu or vpu, in order of preference; any when not given.",
    ),
    RequestOption(
        key="models",
        metavar="MODEL",
        many=True,
        parse=_name,
        example="A100,Tesla K80",
        help="Models, in order of preference; any when not given.",
    ),
    RequestOption(
        key="min_driver",
        metavar="VERSION",
        parse=_name,
        example="550.54",
        help="Lowest driver version that is accepted.",
    ),
    RequestOption(
        key="min_runtime",
        metavar="VERSION",
        parse=_name,
        example="12.4",
        help="Lowest CUDA or OpenCL version that is accepted.",
    ),
    RequestOption(
        key="requires",
        metavar="VERSIONS",
        many=True,
        separator=";",
        parse=_constraint,
        example="onnxruntime>=1.10,<1.13; driver>=550",
        help="Accepted versions of libraries, driver and runtime, as for Python packages.",
    ),
    RequestOption(
        key="data",
        metavar="NAME",
        many=True,
        parse=_reference,
        example="proteins,taxonomy",
        help="Only hosts that have these data sets (`gpud --data`); NAME@sha256:HEX with exactly"
        " this content.",
    ),
    RequestOption(
        key="programs",
        metavar="NAME",
        many=True,
        parse=_reference,
        example="blast",
        help="Only hosts that run these programs (`gpud --program`); NAME@sha256:HEX as for data.",
    ),
    RequestOption(
        key="middleware",
        metavar="NAME",
        parse=_name,
        example="rcuda",
        help="Only hosts that offer this remote-GPU software; any when not given.",
    ),
    RequestOption(
        key="advisory",
        switch=True,
        parse=bool,
        help="Accept devices that only ssgm-monitor watches: leases are not enforced there.",
    ),
)
_SHARE = (
    RequestOption(
        key="memory",
        unit="_mib",
        percent_field="memory_pct",
        short="-m",
        metavar="SIZE",
        parse=parse_memory_size,
        example="4GiB",
        help="Memory of each device: a size (a unit is 256 MiB), or a percentage of the device.",
    ),
    RequestOption(
        key="memory_max",
        unit="_mib",
        metavar="SIZE",
        parse=parse_memory_mib,
        example="24GiB",
        help="Largest memory of a device; any when not given.",
    ),
    RequestOption(
        key="compute_guarantee",
        unit="_pct",
        metavar="PERCENT",
        parse=parse_percent,
        example="12.5",
        help="Guaranteed percent of each device's compute.",
    ),
    RequestOption(
        key="compute_limit",
        unit="_pct",
        metavar="PERCENT",
        parse=parse_percent,
        example="50",
        help="Upper bound, even while the rest of the device is idle.",
    ),
    RequestOption(
        key="sharing",
        metavar="shared|exclusive",
        parse=one_of(Sharing),
        example="exclusive",
        help="A part of each device (shared), or all of it.",
    ),
    RequestOption(
        key="placement",
        metavar="pack|spread|same_host",
        parse=one_of(Placement),
        example="spread",
        help="The fullest device that fits, the emptiest, or all devices on one host.",
    ),
    RequestOption(
        key="warm_key",
        metavar="KEY",
        parse=_name,
        example="resnet50",
        help="Prefer a device where this model or module is resident.",
    ),
    RequestOption(
        key="workload",
        metavar="NAME",
        parse=_name,
        example="resnet50-fp16",
        help="All that the device must have loaded, as one name: leases of one tenant with the same"
        " name use each other's warm workers.",
    ),
)
_BATCH = (
    RequestOption(
        key="batch",
        metavar="MS[:ITEMS]",
        parse=_batch,
        example="5:32",
        help="Join calls with those of other leases of the tenant and workload: the longest wait in"
        " milliseconds, and the most items of one run.",
    ),
)
_QUEUE = (
    RequestOption(
        key="advance",
        metavar="S[:PCT]",
        parse=_advance,
        example="30:10",
        help="Take a lease before its device is free, with a session that waits at its host: the"
        " longest wait in seconds, and how often it may come late, in percent.",
    ),
    RequestOption(
        key="priority",
        metavar="N",
        parse=_whole,
        example="10",
        help="-100 to 100; a higher one is served first. With a key, at most what the key allows: 0"
        " unless its operator gave more.",
    ),
    RequestOption(
        key="preempts",
        switch=True,
        parse=bool,
        help="While it fits nowhere, end preemptible leases of a lower priority.",
    ),
    RequestOption(
        key="preemptible",
        switch=True,
        parse=bool,
        help="Agree that the lease may end for a request that preempts.",
    ),
    RequestOption(
        key="tenant",
        metavar="NAME",
        parse=_name,
        example="genomics",
        help="The tenant to whose quota and fair share the request counts.",
    ),
    RequestOption(
        key="max_wait",
        unit="_s",
        metavar="TIME",
        parse=parse_duration_s,
        example="90s",
        help="Wait at most this long; then the answer is busy.",
    ),
    RequestOption(
        key="deadline",
        unit="_s",
        metavar="TIME",
        parse=parse_duration_s,
        example="2h",
        help="Give up after this long.",
    ),
    RequestOption(
        key="lease_length",
        name="lease_s",
        metavar="TIME",
        parse=parse_duration_s,
        example="1h",
        help="Longest time that the lease is needed.",
    ),
)

#: Every option, in the order of help and documentation.
REQUEST_OPTIONS: tuple[RequestOption, ...] = (*_COUNT_AND_KIND, *_SHARE, *_BATCH, *_QUEUE)


def parse_option(option: RequestOption, text: str) -> Any:
    """The value of one option for its field of `Request`. Raises INVALID that names the flag."""
    try:
        if option.many:
            return tuple(option.parse(part) for part in text.split(option.separator))
        return option.parse(text)
    except AppError as error:
        raise invalid(f"{option.flag}: {error.message}") from None


def request_of(values: Mapping[str, Any]) -> Request:
    """A request from values by key; an absent key has the default of the model."""
    given: dict[str, Any] = {}
    for option in REQUEST_OPTIONS:
        value = values.get(option.key)
        if isinstance(value, MemorySize):
            given |= {option.field: value.mib, option.percent_field: value.pct}
        elif value is not None:
            given[option.field] = value
    return Request(**given)
