"""The words a request is written in, once for all: flags of `ssgm` (also of its classic form), keys
of the FDL's `gpu:` block, the table in `docs/scheduler.md`.

A word's key is the field of `Request` without its unit; its flag is the key with dashes. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from corekit.errors import AppError, invalid
from corekit.units import parse_duration_s, parse_memory_mib
from gpu_scheduler.model import DeviceKind, Placement, Request, Sharing

#: From the text of one value to the value; raises INVALID.
Parse = Callable[[str], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOption:
    """One word of a request."""

    key: str  #: as in the FDL: `compute_guarantee`
    field: str  #: of `Request`: `compute_guarantee_pct`
    metavar: str  #: what stands for its value in help
    help: str  #: one sentence
    example: str  #: a value as one writes it
    parse: Parse
    short: str = ""  #: one-letter flag, as SSGM has it
    many: bool = False  #: a list in order of preference: commas, or the flag again
    switch: bool = False  #: a flag without a value

    @property
    def flag(self) -> str:
        """`--compute-guarantee`"""
        return "--" + self.key.replace("_", "-")


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise invalid(f"{text!r} is not a whole number") from None


def _percent(text: str) -> int:
    return _whole(text.removesuffix("%").rstrip())


def one_of(words: type[StrEnum]) -> Parse:
    """Reads one of a closed set of words."""

    def parse(text: str) -> StrEnum:
        try:
            return words(text.strip().lower())
        except ValueError:
            raise invalid(f"{text!r} is not one of {', '.join(words)}") from None

    return parse


def _name(text: str) -> str:
    if not text.strip():
        raise invalid("the value is empty")
    return text.strip()


_COUNT_AND_KIND = (
    RequestOption(
        key="count",
        field="count",
        short="-g",
        metavar="N",
        parse=_whole,
        example="2",
        help="Devices; all of them or none.",
    ),
    RequestOption(
        key="kinds",
        field="kinds",
        metavar="KIND",
        many=True,
        parse=one_of(DeviceKind),
        example="cuda,opencl",
        help="cuda, opencl, cpu or vpu, in order of preference; any when not given.",
    ),
    RequestOption(
        key="models",
        field="models",
        metavar="MODEL",
        many=True,
        parse=_name,
        example="A100,Tesla K80",
        help="Models, in order of preference; any when not given.",
    ),
    RequestOption(
        key="min_driver",
        field="min_driver",
        metavar="VERSION",
        parse=_name,
        example="550.54",
        help="Lowest driver version that will do.",
    ),
    RequestOption(
        key="min_runtime",
        field="min_runtime",
        metavar="VERSION",
        parse=_name,
        example="12.4",
        help="Lowest CUDA or OpenCL version that will do.",
    ),
    RequestOption(
        key="middleware",
        field="middleware",
        metavar="NAME",
        parse=_name,
        example="rcuda",
        help="Only hosts that offer this remote-GPU software; any when not given.",
    ),
    RequestOption(
        key="advisory",
        field="advisory",
        metavar="",
        switch=True,
        parse=bool,
        example="",
        help="Devices that only ssgm-monitor watches will do: nobody enforces leases there.",
    ),
)
_SHARE = (
    RequestOption(
        key="memory",
        field="memory_mib",
        short="-m",
        metavar="SIZE",
        parse=parse_memory_mib,
        example="4GiB",
        help="Of each device: MiB, or with a unit.",
    ),
    RequestOption(
        key="memory_max",
        field="memory_max_mib",
        metavar="SIZE",
        parse=parse_memory_mib,
        example="24GiB",
        help="No device that is larger than this; any when not given.",
    ),
    RequestOption(
        key="compute_guarantee",
        field="compute_guarantee_pct",
        metavar="PERCENT",
        parse=_percent,
        example="25",
        help="Promised percent of each device's compute.",
    ),
    RequestOption(
        key="compute_limit",
        field="compute_limit_pct",
        metavar="PERCENT",
        parse=_percent,
        example="50",
        help="Never more than this, even while the rest is idle.",
    ),
    RequestOption(
        key="sharing",
        field="sharing",
        metavar="shared|exclusive",
        parse=one_of(Sharing),
        example="exclusive",
        help="A part of each device (shared), or all of it.",
    ),
    RequestOption(
        key="placement",
        field="placement",
        metavar="pack|spread|same_host",
        parse=one_of(Placement),
        example="spread",
        help="Fill the fullest device, use the emptiest, or all on one host.",
    ),
    RequestOption(
        key="warm_key",
        field="warm_key",
        metavar="KEY",
        parse=_name,
        example="resnet50",
        help="Rather a device where this model or module is resident.",
    ),
)
_QUEUE = (
    RequestOption(
        key="priority",
        field="priority",
        metavar="N",
        parse=_whole,
        example="10",
        help="-100 to 100; higher goes first.",
    ),
    RequestOption(
        key="tenant",
        field="tenant",
        metavar="NAME",
        parse=_name,
        example="genomics",
        help="Whose quota and fair share it counts for.",
    ),
    RequestOption(
        key="max_wait",
        field="max_wait_s",
        metavar="TIME",
        parse=parse_duration_s,
        example="90s",
        help="Wait, but be refused as busy after this.",
    ),
    RequestOption(
        key="deadline",
        field="deadline_s",
        metavar="TIME",
        parse=parse_duration_s,
        example="2h",
        help="Of no use any more this long from now.",
    ),
    RequestOption(
        key="lease_length",
        field="lease_s",
        metavar="TIME",
        parse=parse_duration_s,
        example="1h",
        help="Needed at most this long.",
    ),
)

#: Every word, in the order of help and documentation.
REQUEST_OPTIONS: tuple[RequestOption, ...] = (*_COUNT_AND_KIND, *_SHARE, *_QUEUE)


def parse_option(word: RequestOption, text: str) -> Any:
    """The value of one word as a field of `Request` has it. Raises INVALID that names the flag."""
    try:
        if word.many:
            return tuple(word.parse(part) for part in text.split(","))
        return word.parse(text)
    except AppError as error:
        raise invalid(f"{word.flag}: {error.message}") from None


def request_of(values: Mapping[str, Any]) -> Request:
    """A request from values by key; a key that is not there keeps the model's default."""
    given = {
        word.field: values[word.key] for word in REQUEST_OPTIONS if values.get(word.key) is not None
    }
    return Request(**given)
