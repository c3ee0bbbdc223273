"""Our keys: `gpu:`, the request of each job to the scheduler, and `job:`, the jobs themselves."""

from __future__ import annotations

from enum import StrEnum

from fdl.keys.storage import STORAGE, STORAGE_KEYS
from fdl.model import RESULT_DAYS_MIN, BatchRules, Compute, Gpu, Intermediate, Job, Queue
from fdl.schema.scalars import (
    Choice,
    DeviceMemory,
    Duration,
    Flag,
    Integer,
    Memory,
    Percent,
    Text,
    Version,
    Versions,
)
from fdl.schema.schema import Block, Key, ListOf, MapOf, Reader
from gpu_scheduler.data_names import NAMES_MAX, REFERENCE_PATTERN
from gpu_scheduler.model import (
    BATCH_SIZE_MAX,
    BATCH_WAIT_MS_MAX,
    COUNT_MAX,
    DeviceKind,
    Placement,
    Sharing,
)
from gpu_scheduler.request_options import REQUEST_OPTIONS

_TEXT = Text(short="names")
_HELP = {word.key: word.help for word in REQUEST_OPTIONS}
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


def _words(closed: type[StrEnum]) -> tuple[str, ...]:
    return tuple(word.value for word in closed)


def _word(
    key: str,
    reader: Reader[object],
    to: str | None = None,
    *,
    refused: str = "",
    default: str | None = None,
) -> Key:
    """A key of the scheduler's requests, as `ssgm` has it."""
    return Key(reader=reader, to=to, about=_HELP[key], refused=refused, default=default)


_COMPUTE = Block(
    into=Compute,
    short="guarantee",
    keys={
        "guarantee": _word("compute_guarantee", Percent(), "guarantee_pct", default="0 %"),
        "limit": _word("compute_limit", Percent(low=1), "limit_pct", default="100 %"),
    },
)
_BATCH = Block(
    into=BatchRules,
    keys={
        "joins": Key(reader=Flag(), about="Whether calls of other jobs may be in the same run."),
        "wait_ms": Key(
            reader=Integer(low=0, high=round(BATCH_WAIT_MS_MAX), unit="ms"),
            about="The longest wait of a call for others, beyond the runs that are under way.",
        ),
        "size_max": Key(
            reader=Integer(low=1, high=BATCH_SIZE_MAX), about="The most items of one run."
        ),
    },
)
GPU: Block[Gpu | None] = Block(
    into=Gpu,
    none=lambda: None,
    keys={
        "count": _word("count", Integer(low=1, high=COUNT_MAX)),
        "kinds": _word("kinds", ListOf(item=Choice(_words(DeviceKind)), one=True), default="any"),
        "models": _word("models", ListOf(item=_TEXT, one=True), default="any"),
        "memory": _word(
            "memory",
            DeviceMemory(),
            default="all of an exclusive device, none of a shared one",
        ),
        "memory_max": _word("memory_max", Memory(), "memory_max_mib", default="any size"),
        "compute": Key(
            reader=_COMPUTE,
            about="Guarantee and limit of compute in percent of one device; a lone number is the"
            " guarantee.",
        ),
        "compute_guarantee": _word(
            "compute_guarantee", Percent(), "compute_guarantee_pct", default="0 %"
        ),
        "compute_limit": _word(
            "compute_limit", Percent(low=1), "compute_limit_pct", default="100 %"
        ),
        "sharing": _word("sharing", Choice(_words(Sharing))),
        "placement": _word("placement", Choice(_words(Placement))),
        "min_driver": _word("min_driver", Version()),
        "min_runtime": _word("min_runtime", Version()),
        "requires": _word(
            "requires",
            MapOf(
                item=Versions(),
                key_pattern=r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?",
                key_what="the name of a library, `driver` or `runtime`",
            ),
            default="any versions",
        ),
        "data": _word("data", _NAMES, default="any data"),
        "programs": _word("programs", _NAMES, default="any programs"),
        "warm_key": _word(
            "warm_key", Text(pattern=r"[\w.:/@-]{1,128}", what="a warm key", short="a hash or name")
        ),
        "workload": _word(
            "workload",
            Text(pattern=r"[\w.:/@-]{1,128}", what="the name of a workload", short="a name"),
            default="derived from the function's code, models and configuration",
        ),
        "priority": _word("priority", Integer(low=-100, high=100)),
        "batch": Key(
            reader=_BATCH,
            about="Calls of the jobs of one tenant and workload on one device may be computed in"
            " one run; no answer depends on the others.",
        ),
        "preempts": _word("preempts", Flag()),
        "preemptible": _word("preemptible", Flag()),
        "tenant": _word(
            "tenant", Text(pattern=r"[A-Za-z0-9._-]{1,64}", what="the name of a tenant")
        ),
        "max_wait": _word("max_wait", Duration(), "max_wait_s"),
        "deadline": Key(
            reader=Duration(),
            to="deadline_s",
            about="Give up after a job has waited this long: it ends as DEADLINE. Hand-backs and"
            " further attempts count.",
        ),
        "lease_length": Key(
            reader=Duration(),
            to="lease_s",
            about=_HELP["lease_length"] + " Forecasts and backfill use it.",
            default="what the function's timeout allows",
        ),
        "on_unavailable": Key(
            reader=Choice(("fail", "cpu", "requeue")),
            about="After `max_wait`: `fail` rejects the job, `cpu` requests any device of kind cpu"
            " (also when the request is permanently infeasible), `requeue` waits again and keeps"
            " the job's position in the queue.",
        ),
        "middleware": Key(
            reader=Text(
                pattern=r"[a-z][a-z0-9_-]{0,31}",
                what="the name of a middleware",
                short="`builtin`, or a name from docs/middlewares.md",
                listed="middlewares",
            ),
            about="The remote-GPU software between function and device: our own, or a server of"
            " this one that the host offers (`gpud --middleware`), relayed by its gateway.",
        ),
        "advisory": _word(
            "advisory",
            Flag(),
            refused="functions reach devices through a gateway, and advisory ones have none:"
            " use `ssgm alloc --advisory`",
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
        "deadline": Key(reader=_TEXT, refused="write `gpu: {deadline: …}`"),
        "on_unavailable": Key(reader=_TEXT, refused="write `gpu: {on_unavailable: …}`"),
        "group": Key(reader=_TEXT, refused=GPU.keys["group"].refused),
    },
)
