"""The keys of a run file, as tables of readers: the same form as the keys of definitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from fdl.schema.scalars import Choice, Duration, Flag, Integer, Memory, Number, Percent, Text
from fdl.schema.schema import Block, Key, ListOf, MapOf, Reader, Reading, Schema
from fdl.text.nodes import Mapping as MappingNode
from fdl.text.nodes import Node, Scalar, kind_of
from gpu_scheduler.model import BATCH_SIZE_MAX, COUNT_MAX, Advance, DeviceKind
from orchgpu.fleet.offers import OFFERS
from simulator.workloads.arrivals import Bursts, Phase, Phases, Poisson, Times
from simulator.workloads.model import (
    ANY_DEVICE,
    BatchOf,
    ClosedLoop,
    HostSpec,
    Objectives,
    Run,
    Source,
    Timing,
    Workflow,
    WorkflowStep,
    Workload,
)

_NAME = Text(pattern=r"[A-Za-z0-9._-]{1,64}", what="a name (letters, digits, ., _ and -)")
_FILE = Text(short="a file", what="a file, relative to this one")
_LENGTH = Duration(high_s=10 * 365 * 86400.0)
_KIND = Choice(tuple(kind.value for kind in DeviceKind))
_DOLLARS = Number(low=0.0, high=1e9, unit="dollars")
_RATE = Number(low=0.0, high=1e6, unit="requests/s")

_TIMING = Block(
    into=Timing,
    short="median",
    keys={
        "median": Key(reader=_LENGTH, to="median_s", required=True, about="Median of the time."),
        "spread": Key(
            reader=Number(low=0.0, high=5.0),
            about="Standard deviation of its logarithm; 0 = constant.",
        ),
    },
)


@dataclass(frozen=True, slots=True)
class Timings:
    """A time for all devices, or one for each kind or model of device."""

    def read(self, node: Node, path: str, reading: Reading) -> Mapping[str, Timing]:
        if isinstance(node, MappingNode) and node.child("median") is None:
            return MapOf(item=_TIMING, key_what="a kind or model of device").read(
                node, path, reading
            )
        return {ANY_DEVICE: _TIMING.read(node, path, reading)}

    def describe(self) -> str:
        return "a time; `{median, spread}`; or a mapping of kinds or models of device to these"

    def schema(self) -> Schema:
        return {"anyOf": [_TIMING.schema(), MapOf(item=_TIMING).schema()]}


@dataclass(frozen=True, slots=True)
class Costs:
    """A cost for all devices, or one for each kind or model of device."""

    def read(self, node: Node, path: str, reading: Reading) -> Mapping[str, float]:
        if isinstance(node, MappingNode):
            costs = MapOf(item=_DOLLARS, key_what="a kind or model of device")
            return costs.read(node, path, reading)
        return {ANY_DEVICE: _DOLLARS.read(node, path, reading)}

    def describe(self) -> str:
        return "dollars, or a mapping of kinds or models of device to dollars"

    def schema(self) -> Schema:
        return {"anyOf": [_DOLLARS.schema(), MapOf(item=_DOLLARS).schema()]}


@dataclass(frozen=True, slots=True)
class StepLength:
    """A time, or true for one second."""

    def read(self, node: Node, path: str, reading: Reading) -> float:
        if isinstance(node, Scalar) and node.plain and node.text.lower() in _TRUTHS:
            return float(Flag().read(node, path, reading))
        return _LENGTH.read(node, path, reading)

    def describe(self) -> str:
        return "a time, true (a second) or false"

    def schema(self) -> Schema:
        return {"anyOf": [Flag().schema(), _LENGTH.schema()]}


_ADVANCE = Block(
    into=Advance,
    keys={
        "wait": Key(
            reader=Duration(low_s=0.1, high_s=840.0),
            to="wait_s",
            about="Longest wait of a function for its device.",
        ),
        "late_pct": Key(
            reader=Number(low=0.0, high=50.0),
            about="Part of the functions that may come after their device is free.",
        ),
    },
)
_TRUTHS = ("true", "false", "yes", "no", "on", "off")
WORKLOAD: Block[Workload] = Block(
    into=partial(Workload, name="workload"),  # its key names it
    keys={
        "execution": Key(reader=Timings(), about="Time of a job on a warm worker."),
        "loading": Key(reader=Timings(), about="Time that a cold worker needs before its job."),
        "start": Key(
            reader=_TIMING,
            about="Time from a grant to the session: staging, event, sandbox.",
            default="0",
        ),
        "advance": Key(
            reader=_ADVANCE, about="Jobs take leases ahead, on these terms.", default="they do not"
        ),
        "memory": Key(reader=Memory(), to="memory_mib", about="Device memory of a job."),
        "warm_memory": Key(
            reader=Memory(),
            to="warm_mib",
            about="Device memory of a warm worker.",
            default="that of a job",
        ),
        "compute": Key(
            reader=Percent(),
            to="compute_pct",
            about="Guaranteed compute: at 100 a device serves one job at a time.",
            default="100 %",
        ),
        "fills": Key(
            reader=Percent(),
            to="fills_pct",
            about="Part of a device that a job can use; below it, its execution takes longer.",
            default="execution is stated for `compute`",
        ),
        "exclusive": Key(reader=Flag(), about="Jobs take whole devices."),
        "count": Key(reader=Integer(low=1, high=COUNT_MAX), about="Devices of one job."),
        "kinds": Key(reader=ListOf(item=_KIND, one=True), about="Acceptable kinds of device."),
        "models": Key(reader=ListOf(item=Text(), one=True), about="Acceptable models."),
        "tenant": Key(reader=_NAME, about="Tenant of its requests."),
        "priority": Key(reader=Integer(low=-100, high=100), about="Priority of its requests."),
        "lease_length": Key(
            reader=_LENGTH, to="lease_s", about="Stated length: a lease ends then at the latest."
        ),
        "max_wait": Key(reader=_LENGTH, to="max_wait_s", about="Longest wait of a request."),
    },
)


def _step(
    name: str, after: tuple[str, ...] = (), cost: Mapping[str, float] | None = None, **values: Any
) -> WorkflowStep:
    workload = Workload(name=name, **values)
    return WorkflowStep(name=name, workload=workload, after=after, cost=cost or {})


_BATCH = Block(
    into=BatchOf,
    keys={
        "item": Key(reader=Timings(), required=True, about="Added by each further member."),
        "size_max": Key(reader=Integer(low=1, high=BATCH_SIZE_MAX), about="Most members."),
    },
)
#: The keys of a workload that a step has too.
_STEP_KEYS = ("execution", "loading", "memory", "compute", "kinds", "models", "tenant")
_STEP = Block(
    into=_step,
    keys={
        "name": Key(reader=_NAME, required=True, about="Name of the step."),
        "after": Key(reader=ListOf(item=_NAME, one=True), about="Steps that end before it."),
        "cost": Key(reader=Costs(), about="Dollars of an execution, by kind or model of device."),
        "batch": Key(
            reader=_BATCH,
            about="Steps of promised runs that begin together on one device are one execution.",
            default="they join none",
        ),
        **{name: WORKLOAD.keys[name] for name in _STEP_KEYS},
    },
)


def _workflow(steps: tuple[WorkflowStep, ...]) -> Workflow:
    return Workflow(name="workflow", steps=steps)  # its key names it


_WORKFLOW = Block(
    into=_workflow,
    keys={"steps": Key(reader=ListOf(item=_STEP, items_min=1), required=True, about="Its steps.")},
)
HOST = Block(
    into=HostSpec,
    keys={
        "name": Key(reader=_NAME, required=True, about="Name of the host, or of all with it."),
        "devices": Key(reader=Integer(low=1, high=1024), about="Devices of each host."),
        "hosts": Key(reader=Integer(low=1, high=10_000), about="Hosts of this form."),
        "kind": Key(reader=_KIND, about="Kind of its devices."),
        "model": Key(reader=Text(), about="Model of its devices."),
        "memory": Key(reader=Memory(), to="memory_mib", about="Memory of each device."),
    },
)


def _cost(**values: Any) -> Timing:
    return Timing(**values)


_COST = Block(
    into=_cost,
    short="median",
    keys={
        "median": Key(
            reader=_DOLLARS, to="median_s", required=True, about="Median of the objective."
        ),
        "spread": Key(
            reader=Number(low=0.0, high=5.0),
            about="Standard deviation of its logarithm; 0 = constant.",
        ),
    },
)
_SLO = Block(
    into=Objectives,
    keys={
        "latency": Key(reader=_TIMING, about="From the request of a run to its end."),
        "cost": Key(reader=_COST, about="Of all steps, in dollars."),
    },
)
#: A source has a workload or a workflow.
_WORKLOAD_OF = {"workload": Key(reader=_NAME, about="A workload of this file.")}
_RUNS_OF = {
    **_WORKLOAD_OF,
    "workflow": Key(reader=_NAME, about="A workflow of this file, instead of a workload."),
    "slo": Key(reader=_SLO, about="Objectives of its runs."),
}
_OPEN = {
    **_RUNS_OF,
    "start": Key(reader=_LENGTH, to="start_s", about="Time of the beginning."),
    "tenant": Key(reader=_NAME, about="Tenant, instead of that of the workload."),
}
_PHASE = Block(
    into=Phase,
    keys={
        "duration": Key(reader=_LENGTH, to="duration_s", required=True, about="Its length."),
        "rate": Key(reader=_RATE, to="rate_per_s", required=True, about="Requests per second."),
    },
)
_OF_TRACE = {
    "loading": Key(reader=_LENGTH, to="loading_s", about="Loading time of every workload."),
    "memory": Key(reader=Memory(), to="memory_mib", about="Device memory of a job."),
    "compute": Key(reader=Percent(), to="compute_pct", about="Guaranteed compute of a job."),
    "functions_max": Key(
        reader=Integer(low=1, high=100_000), about="Only the functions with the most requests."
    ),
    "start": Key(reader=_LENGTH, to="start_s", about="Time of the first request."),
    "speed": Key(reader=Number(low=1e-3, high=1e6), about="2 = requests in half the time."),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """A trace that the load names; its files are not read yet."""

    layout: str
    files: Mapping[str, str]  #: by key
    loading_s: float = 0.0
    memory_mib: int = 0
    compute_pct: float = 100
    functions_max: int = 100
    start_s: float = 0.0
    speed: float = 1.0


#: A source of requests as the file has it.
AnySource: TypeAlias = Source | ClosedLoop | TraceFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A run as its file has it: the traces are not read yet."""

    run: Run  #: without its load
    load: tuple[AnySource, ...]


def _trace_block(layout: str, *required: str, more: tuple[str, ...] = ()) -> Block[TraceFile]:
    def into(**values: Any) -> TraceFile:  # the readers of the keys decide the types
        files = {key: values.pop(key) for key in (*required, *more) if key in values}
        return TraceFile(layout=layout, files=files, **values)

    keys = {
        key: Key(reader=_FILE, required=key in required, about="A file, relative to this one.")
        for key in (*required, *more)
    }
    return Block(into=into, keys={**keys, **_OF_TRACE})


#: Kind of a source → the block of its keys.
SOURCES: Mapping[str, Reader[AnySource]] = {
    "poisson": Block(
        into=Poisson,
        keys={
            **_OPEN,
            "rate": Key(reader=_RATE, to="rate_per_s", required=True, about="Mean rate."),
        },
    ),
    "phases": Block(
        into=Phases,
        keys={
            **_OPEN,
            "phases": Key(reader=ListOf(item=_PHASE), required=True, about="One after the other."),
            "regular": Key(reader=Flag(), about="Equal gaps; else a Poisson stream."),
        },
    ),
    "bursts": Block(
        into=Bursts,
        keys={
            **_OPEN,
            "every": Key(
                reader=Duration(low_s=1e-3), to="every_s", required=True, about="Between two."
            ),
            "size": Key(
                reader=Integer(low=1, high=100_000), required=True, about="Requests of each."
            ),
        },
    ),
    "times": Block(
        into=Times,
        keys={
            **_RUNS_OF,
            "tenant": _OPEN["tenant"],
            "at": Key(
                reader=ListOf(item=_LENGTH, one=True, items_max=10_000),
                to="at_s",
                required=True,
                about="Times of the requests.",
            ),
        },
    ),
    "closed": Block(
        into=ClosedLoop,
        keys={
            **_WORKLOAD_OF,
            "clients": Key(
                reader=Integer(low=1, high=100_000), required=True, about="Number of clients."
            ),
            "think": Key(reader=_LENGTH, to="think_s", about="Pause after a job."),
            "own_tenants": Key(reader=Flag(), about="Every client is a tenant of its own."),
            "own_workloads": Key(reader=Flag(), about="Every client has its own workload."),
            "start": Key(reader=_LENGTH, to="start_s", about="Time of the beginning."),
        },
    ),
    "azure2019": _trace_block("azure2019", "invocations", "durations", more=("app_memory",)),
    "azure2021": _trace_block("azure2021", "file"),
    "alibaba2023": _trace_block("alibaba2023", "file"),
    "journal": _trace_block("journal", "folder"),
}


@dataclass(frozen=True, slots=True)
class OneSource:
    """A source of requests, by its `kind`."""

    def read(self, node: Node, path: str, reading: Reading) -> AnySource:
        if not isinstance(node, MappingNode):
            raise reading.error(node, path, f"expected a mapping, got {kind_of(node)}")
        kind = node.child("kind")
        if kind is None:
            raise reading.error(node, path, f"missing key 'kind': one of {', '.join(SOURCES)}")
        name = Choice(tuple(SOURCES)).read(kind, f"{path}.kind", reading)
        return SOURCES[name].read(node.without("kind"), path, reading)

    def describe(self) -> str:
        return "a source: `kind` is one of " + ", ".join(f"`{kind}`" for kind in SOURCES)

    def schema(self) -> Schema:
        return {"anyOf": [_with_kind(kind, block.schema()) for kind, block in SOURCES.items()]}


def _with_kind(kind: str, block: Schema) -> Schema:
    properties = block["properties"]
    assert isinstance(properties, dict)
    return {**block, "properties": {"kind": {"const": kind}, **properties}}


_VALUE = Text(short="a value", what="a value", empty=True)


def _draft(load: tuple[AnySource, ...], **values: Any) -> Draft:
    """A draft of the values of its keys, whose readers decide the types."""
    return Draft(run=Run(load=(), **values), load=load)


RUN: Block[Draft] = Block(
    into=_draft,
    keys={
        "name": Key(reader=_NAME, about="Name of the run; part of its random streams."),
        "policy": Key(reader=_NAME, about="Queue policy.", default="that of the scheduler"),
        "parameters": Key(
            reader=MapOf(item=_VALUE), about="Parameters of the scheduler, as in `ssgm set`."
        ),
        "duration": Key(reader=_LENGTH, to="duration_s", about="Requests arrive until then."),
        "drain": Key(reader=Flag(), about="Continue until every request was served."),
        "steps": Key(
            reader=StepLength(),
            to="steps_s",
            about="Requests arrive at multiples of this time; true: of a second.",
        ),
        "measure_from": Key(
            reader=_LENGTH, to="measure_from_s", about="Earlier requests only warm up the devices."
        ),
        "seed": Key(reader=Integer(low=0, high=2**31), about="The first seed."),
        "seeds": Key(reader=Integer(low=1, high=10_000), about="Number of seeds of `compare`."),
        "occupancy": Key(
            reader=Number(low=0.0, high=100.0),
            about="Part of the devices that warm execution occupies; scales all Poisson rates.",
        ),
        "hosts": Key(reader=ListOf(item=HOST), about="Hosts.", default="those of a journal"),
        "fleet": Key(reader=OFFERS, about="Hosts that come and go: the content of an offers file."),
        "workloads": Key(reader=MapOf(item=WORKLOAD), about="Workloads by name."),
        "workflows": Key(reader=MapOf(item=_WORKFLOW), about="Workflows by name."),
        "load": Key(
            reader=ListOf(item=OneSource(), items_min=1),
            required=True,
            about="Sources of requests.",
        ),
    },
)
