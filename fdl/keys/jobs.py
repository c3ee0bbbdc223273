"""Our keys: `gpu:`, the request of each job to the scheduler, and `job:`, the jobs themselves.

The keys of `gpu:` are the options of a request: `REQUEST_OPTIONS` has their names and meanings, the
fields of `Request` their types, limits and defaults. A new option is a key here by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec.inspect as types

from corekit.errors import invalid
from corekit.units import MemorySize
from corekit.values import replace
from fdl.keys.promises import SLO, TIMES
from fdl.keys.storage import STORAGE, STORAGE_KEYS
from fdl.model import (
    BUILTIN,
    LAMBDA_TIMEOUT_S_MAX,
    RESULT_DAYS_MIN,
    Gpu,
    Intermediate,
    Job,
    Queue,
    words_of_a_file,
)
from fdl.schema.scalars import (
    AdvanceWait,
    Choice,
    DeviceMemory,
    Duration,
    Flag,
    Integer,
    Memory,
    Number,
    Percent,
    Text,
    Version,
    Versions,
)
from fdl.schema.schema import Block, Key, ListOf, MapOf, Reader, Reading, Schema, Values
from fdl.text.nodes import Node
from gpu_scheduler.data_names import NAMES_MAX, REFERENCE_PATTERN
from gpu_scheduler.floors import WORKERS_MAX
from gpu_scheduler.model import (
    BATCH_SIZE_MAX,
    BATCH_WAIT_MS_MAX,
    COUNT_MAX,
    LENGTH_S_MAX,
    Batch,
    Request,
)
from gpu_scheduler.promises import Slo, StepTimes
from gpu_scheduler.request_options import REQUEST_OPTIONS

_TEXT = Text(short="names")
#: Of a cap: less buys less than a second of a function with a device.
COST_USD_MIN = 0.000001
_NAMES = ListOf(
    item=Text(
        pattern=REFERENCE_PATTERN,
        what="a name such as proteins, or proteins@sha256: with 64 hex digits",
        short="names",
    ),
    one=True,
    items_max=NAMES_MAX,
)
_QUEUE = Text(
    pattern=r"[A-Za-z0-9_-]{1,80}",
    what="the name of a standard SQS queue (letters, digits, - and _, up to 80)",
    short="a queue's name",
)


@dataclass(frozen=True, slots=True)
class _Requirements:
    """Accepted versions by the name of a library, as constraints of a request."""

    versions: MapOf[str]

    def read(self, node: Node, path: str, reading: Reading) -> tuple[str, ...]:
        return tuple(name + of for name, of in self.versions.read(node, path, reading).items())

    def describe(self) -> str:
        return self.versions.describe()

    def schema(self) -> Schema:
        return self.versions.schema()


def _gpu(
    *,
    on_unavailable: str = "fail",
    max_cost_usd: float | None = None,
    slo: Slo | None = None,
    times: Mapping[str, StepTimes] | None = None,
    warm_min: int = 0,
    warm_loads: Mapping[str, Mapping[str, str]] | None = None,
    models: tuple[str, ...] = (),
    memory: MemorySize | None = None,
    middleware: str = BUILTIN,
    compute: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Gpu:
    """The block of these keys. Raises INVALID for keys that contradict each other."""
    nested = dict(compute or {})
    for name in fields.keys() & nested.keys():
        word = name.removeprefix("compute_").removesuffix("_pct")
        raise invalid(f"compute.{word} and compute_{word} are both given; keep one")
    size = memory or MemorySize()
    with words_of_a_file():
        request = Request(
            models=tuple(model for model in models if model != "any"),
            memory_mib=size.mib,
            memory_pct=size.pct,
            middleware=None if middleware == BUILTIN else middleware,
            **nested,
            **fields,
        )
    return Gpu(
        request=request,
        on_unavailable=on_unavailable,
        max_cost_usd=max_cost_usd,
        slo=slo,
        times=times or {},
        warm_min=warm_min,
        warm_loads=warm_loads or {},
    )


def _joined(*, joins: bool = True, **rules: Any) -> Batch:
    """The rules of a block that is there: its calls join others."""
    return Batch(joins=joins, **rules)


_BATCH = Block(
    into=_joined,
    defaults=Batch,
    keys={
        "joins": Key(
            reader=Flag(),
            about="Whether calls of other jobs may be in the same run.",
            default="true",
        ),
        "wait_ms": Key(
            reader=Integer(low=0, high=round(BATCH_WAIT_MS_MAX), unit="ms"),
            about="The longest wait of a call for others, beyond the runs that are under way.",
        ),
        "size_max": Key(
            reader=Integer(low=1, high=BATCH_SIZE_MAX), about="The most items of one run."
        ),
    },
)


def _reader(field: types.Field) -> Reader[object]:
    """The reader of a request's field, by its unit or its type."""
    match field.name.rpartition("_")[2]:
        case "pct":
            return Percent(low=1 if field.default else 0)
        case "mib":
            return Memory()
        case "s":
            return Duration()
    return _reader_of(field.type)


def _reader_of(kind: types.Type) -> Reader[object]:
    match kind:
        case types.Metadata(type=inner):
            return _reader_of(inner)
        case types.UnionType(types=(inner, types.NoneType())):
            return _reader_of(inner)
        case types.VarTupleType(item_type=item):
            return ListOf(item=_reader_of(item), one=True)
        case types.EnumType(cls=words):
            return Choice(tuple(words))
        case types.IntType(ge=low, le=high):
            return Integer(low=low or 0, high=high or 0)
        case types.BoolType():
            return Flag()
    return _TEXT


def _options() -> dict[str, Key]:
    described = types.type_info(Request)
    assert isinstance(described, types.StructType)
    fields = {field.name: field for field in described.fields}
    return {
        option.key: Key(reader=_reader(fields[option.field]), to=option.field, about=option.help)
        for option in REQUEST_OPTIONS
    }


_OPTIONS = _options()
_WORD = r"[a-z][a-z0-9_]{0,63}"
_NAME = r"[\w.:/@-]{1,128}"
#: What the type of a field does not give: narrower readers, and words for people.
_NARROWED: Mapping[str, dict[str, Any]] = {
    "count": {"reader": Integer(low=1, high=COUNT_MAX)},
    "kinds": {"default": "any"},
    "models": {"reader": ListOf(item=_TEXT, one=True), "default": "any"},
    "memory": {
        "reader": DeviceMemory(),
        "to": "memory",
        "default": "all of an exclusive device, none of a shared one",
    },
    "memory_max": {"default": "any size"},
    "compute_guarantee": {"default": "0 %"},
    "compute_limit": {"default": "100 %"},
    "min_driver": {"reader": Version()},
    "min_runtime": {"reader": Version()},
    "requires": {
        "reader": _Requirements(
            MapOf(
                item=Versions(),
                key_pattern=r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?",
                key_what="the name of a library, `driver` or `runtime`",
            )
        ),
        "default": "any versions",
    },
    "data": {"reader": _NAMES, "default": "any data"},
    "programs": {"reader": _NAMES, "default": "any programs"},
    "warm_key": {"reader": Text(pattern=_NAME, what="a warm key", short="a hash or name")},
    "workload": {
        "reader": Text(pattern=_NAME, what="the name of a workload", short="a name"),
        "default": "derived from the function's code, models and configuration",
    },
    "batch": {
        "reader": _BATCH,
        "about": "Calls of the jobs of one tenant and workload on one device may be computed in"
        " one run; no answer depends on the others.",
    },
    "tenant": {"reader": Text(pattern=r"[A-Za-z0-9._-]{1,64}", what="the name of a tenant")},
    "deadline": {
        "about": "Give up after a job has waited this long: it ends as DEADLINE. Hand-backs and"
        " further attempts count.",
    },
    "lease_length": {
        "about": _OPTIONS["lease_length"].about + " Forecasts and backfill use it.",
        "default": "what the function's timeout allows",
    },
    "middleware": {
        "reader": Text(
            pattern=r"[a-z][a-z0-9_-]{0,31}",
            what="the name of a middleware",
            short="`builtin`, or a name from docs/how-to/middlewares.md",
            listed="middlewares",
        ),
        "about": "The remote-GPU software between function and device: our own, or a server of"
        " this one that the host offers (`gpud --middleware`), relayed by its gateway.",
        "default": BUILTIN,
    },
    "advance": {"default": "", "refused": "write `job: {advance: …}`"},
    "advisory": {
        "default": "",
        "refused": "functions reach devices through a gateway, and advisory ones have none:"
        " use `ssgm alloc --advisory`",
    },
}
_KEYS = {name: replace(key, **_NARROWED.get(name, {})) for name, key in _OPTIONS.items()}
GPU: Block[Gpu | None] = Block(
    into=_gpu,
    definition="gpu",
    defaults=Request,
    none=lambda: None,
    keys={
        **_KEYS,
        "compute": Key(
            reader=Block(
                into=Values,
                short="guarantee",
                keys={
                    "guarantee": _KEYS["compute_guarantee"],
                    "limit": _KEYS["compute_limit"],
                },
            ),
            about="Guarantee and limit of compute in percent of one device; a lone number is the"
            " guarantee.",
        ),
        "on_unavailable": Key(
            reader=Choice(("fail", "cpu", "requeue")),
            about="After `max_wait`: `fail` rejects the job, `cpu` requests any device of kind cpu"
            " (also when the request is permanently infeasible), `requeue` waits again and keeps"
            " the job's position in the queue.",
            default="fail",
        ),
        "max_cost": Key(
            reader=Number(low=COST_USD_MIN, high=1e6, unit="USD"),
            to="max_cost_usd",
            about="A job ends as FAILED (MAX_COST) when its attempts have cost so much: the"
            " function's memory and whole devices, from grant to end, at the prices of `orchgpu"
            " cost`.",
            default="no limit",
        ),
        "slo": Key(
            reader=SLO,
            about="The objectives of each job: it is promised when its input arrives, or it ends as"
            " REJECTED before its first attempt. The scheduler's policy must be `slo`.",
            default="none",
        ),
        "times": Key(
            reader=TIMES,
            about="What a job takes, by model or kind of device, or `*`: for promises and quotes.",
            default="those of its last jobs, which the scheduler learns",
        ),
        "warm_min": Key(
            reader=Integer(low=0, high=WORKERS_MAX),
            about="Workers of its workload that hosts keep loaded while an orchestrator serves the"
            " function, before its first job and between jobs, in memory that no lease needs.",
            default="none",
        ),
        "warm_loads": Key(
            reader=MapOf(
                item=MapOf(item=Text(free=True), key_pattern=_WORD, key_what="an argument"),
                key_pattern=_WORD,
                key_what="the name of an operation",
            ),
            about="What those workers load: operation → the arguments that name it, such as"
            " `sequence_search: {database: proteins}`.",
            default="what the workload's last job on the same host loaded",
        ),
        "group": Key(reader=_TEXT, refused="write `group: NAME` next to `gpu:`"),
    },
)

_QUEUES = Block(
    into=Queue,
    short="name",
    keys={
        "name": Key(reader=_QUEUE, about="The job queue.", default="`<name>-jobs`"),
        "dead_letter": Key(reader=_QUEUE, about="Receives failed jobs.", default="`<name>-dlq`"),
        "completion": Key(
            reader=_QUEUE,
            about="Receives results and Lambda's failures.",
            default="`<name>-done`",
        ),
        "retention": Key(
            reader=Duration(high_s=14 * 86400, low_s=60),
            to="retention_s",
            about="How long jobs and dead letters are kept.",
        ),
        "visibility_timeout": Key(
            reader=_TEXT,
            refused="the orchestrator extends the visibility timeout of its messages by itself:"
            " leave it out",
        ),
        "max_receive_count": Key(
            reader=_TEXT,
            refused="a receive does not count as an attempt here: write `job: {attempts: …}`",
        ),
    },
)
JOB = Block(
    into=Job,
    none=lambda: Job(jobs=False),
    keys={
        "input": Key(
            reader=ListOf(item=STORAGE, one=True),
            about="The path to which users upload; exactly one. Each object there is one job.",
            default="`lambda.input`",
        ),
        "intermediate": Key(
            reader=Block(
                into=Intermediate,
                short="path",
                keys={
                    "storage_provider": STORAGE_KEYS["storage_provider"],
                    "path": Key(
                        reader=STORAGE_KEYS["path"].reader,
                        required=True,
                        about="A separate bucket for envelopes and results.",
                    ),
                    "expire_days": Key(
                        reader=Integer(low=1, high=365, unit="days"),
                        about="Staged envelopes are deleted after this time.",
                    ),
                    "results_days": Key(
                        reader=Integer(low=RESULT_DAYS_MIN, high=3650, unit="days"),
                        about="Results and reports are deleted after this time; `orchgpu job`"
                        " knows a job as long as its result.",
                    ),
                },
            ),
            about="The bucket of envelopes and results.",
            default="`<name>-intermediate`; with `job.input`, `lambda.input`",
        ),
        "queue": Key(reader=_QUEUES, about="Names of the queues; a lone name is the job queue's."),
        "attempts": Key(
            reader=Integer(low=1, high=10), to="attempts_max", about="Tries of one job."
        ),
        "concurrency": Key(
            reader=Integer(low=1, high=1000),
            to="concurrency_max",
            about="Limit of jobs in one orchestrator, waiting or running.",
            default="limited by the devices alone; without a device `lambda.reserved_concurrency`,"
            " or 64",
        ),
        "completion": Key(
            reader=Choice(("result", "object")),
            about="The end of a job: the `result` that our runner commits, or, weaker, a change of"
            " one `object`, for code that our runner does not run (SCAR's supervisor, Lambda's own"
            " form of `handler`).",
        ),
        "object": Key(
            reader=STORAGE_KEYS["path"].reader,
            about="With `completion: object`: the `bucket/key` that ends a job, with `{key}` (of"
            " the input, below its prefix), `{name}` (its last part), `{stem}` (without the last"
            " suffix) or `{job}` (the id).",
        ),
        "envelope": Key(
            reader=Choice(("zip", "tar.gz", "reference")),
            about="The form in which the runner gets the input: inside the envelope while it is"
            " small (a `zip`, or a `tar.gz` as orchGPU packs it), or in place, never copied"
            " (`reference`).",
        ),
        "start": Key(
            reader=Choice(("invoke", "event")),
            about="The start of the function: by an `invoke` once the envelope is stored, and by"
            " the envelope's event again; or by the `event` alone, which takes seconds, sometimes"
            " a minute.",
            default="`invoke`; with `completion: object`, `event`",
        ),
        "advance": Key(
            reader=AdvanceWait(high_s=LAMBDA_TIMEOUT_S_MAX),
            to="advance_s",
            about="The longest wait of a function that starts before its device is free; your code"
            " runs after it. Lambda's timeout is longer by it. `auto`: 30 s, if the device costs"
            " more than the function.",
            default="`auto`; `off` without a device, with several, with `completion: object`,"
            " `lambda.reserved_concurrency` or an image",
        ),
        "checkpoint": Key(
            reader=Duration(low_s=10, high_s=86400),
            to="checkpoint_s",
            about="How often the folder CHECKPOINT_DIR of your code is saved, also when the device"
            " is taken away or the time is over; the next attempt of the job finds it there.",
            default="no such folder",
        ),
        "way": Key(
            reader=Duration(high_s=LENGTH_S_MAX),
            to="way_s",
            about="What a job takes outside of its lease and its waiting (upload, session, result);"
            " without a device, as a whole. For promises and quotes, until five jobs have shown"
            " it.",
            default="as learned; 0 before the first job",
        ),
        "deadline": Key(reader=_TEXT, refused="write `gpu: {deadline: …}`"),
        "on_unavailable": Key(reader=_TEXT, refused="write `gpu: {on_unavailable: …}`"),
        "group": Key(reader=_TEXT, refused=GPU.keys["group"].refused),
    },
)
