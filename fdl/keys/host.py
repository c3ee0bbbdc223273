"""`execution:` and `host:`: the place of a function's code, and its run on the host of a device."""

from __future__ import annotations

from collections.abc import Iterator

from fdl.beside_device import (
    ENDPOINT_CALLS_MAX,
    HOST_TIMEOUT_S_MAX,
    Batch,
    Endpoint,
    Host,
)
from fdl.model import LAMBDA_MEMORY_MIB_MAX, LAMBDA_TIMEOUT_S_MAX, Function
from fdl.schema.scalars import Choice, Duration, Flag, Integer, Text
from fdl.schema.schema import Block, Key, ListOf, Reading, Schema
from fdl.text.nodes import Mapping, Node
from gpu_scheduler.floors import floor_problem, loads_problem
from gpu_scheduler.names import IMAGE_PATTERN

COMMAND_WORDS_MAX = 64
_REVISION = "(:[1-9][0-9]*)?"

EXECUTION = Key(
    reader=Choice(("lambda", "host", "auto")),
    about="Where the code runs: in `lambda`; on the `host` of its device; or `auto`: in Lambda, and"
    " on a host where Lambda cannot run it or its time was too short.",
)


def _batch_name(what: str, more: str = "") -> Text:
    pattern = f"[A-Za-z0-9][A-Za-z0-9_-]{{0,127}}{more}"
    return Text(pattern=pattern, what=what, short="a name")


HOST = Block(
    into=Host,
    keys={
        "network": Key(
            reader=Flag(),
            about="Whether the code may open connections beyond its device.",
        ),
        "image": Key(
            reader=Text(
                pattern=IMAGE_PATTERN,
                what="an image by its digest, as registry/name@sha256: with 64 hex digits, or as"
                " s3://bucket/key.tar#sha256: for an archive",
                short="an image by digest",
            ),
            about="OCI image in which `command` runs instead of a script.",
        ),
        "command": Key(
            reader=ListOf(item=Text(free=True), items_max=COMMAND_WORDS_MAX),
            about="Words of the command in `image`.",
            default="the image's own",
        ),
        "warm": Key(
            reader=Flag(),
            about="Whether the handler's process, with what it has loaded, may stay on its host for"
            " the next job.",
        ),
        "batch": Key(
            reader=Block(
                into=Batch,
                keys={
                    "queue": Key(
                        reader=_batch_name("a job queue's name"),
                        required=True,
                        about="Its job queue.",
                    ),
                    "definition": Key(
                        reader=_batch_name("a job definition's name or name:revision", _REVISION),
                        required=True,
                        about="Your job definition, which asks for the card and starts the runner.",
                    ),
                    "start": Key(
                        reader=Duration(low_s=60.0, high_s=6 * 3600.0),
                        to="start_s",
                        about="The longest time until a run starts, after its wait in Batch's"
                        " queue.",
                    ),
                },
            ),
            about="AWS Batch runs it, without a device of ours.",
        ),
    },
)

ENDPOINT = Block(
    into=Endpoint,
    short="enabled",
    keys={
        "enabled": Key(reader=Flag(), about="Whether calls are answered."),
        "idle_s": Key(
            reader=Duration(low_s=1.0, high_s=3600.0),
            about="The process and its device are given up after this long without a call.",
        ),
        "call_s": Key(
            reader=Duration(low_s=0.1, high_s=900.0),
            about="A call that takes longer is ended, with its process.",
        ),
        "calls_max": Key(
            reader=Integer(low=1, high=ENDPOINT_CALLS_MAX),
            about="Calls side by side, each in a process of its own, which loads and needs its part"
            " of `memory`; the device may compute their operations in one run.",
            default="1; with `gpu: {batch: …}` its `size_max`, at most 8 and one per 512 MiB of"
            " `memory`",
        ),
    },
)

#: JSON Schema of what Lambda alone has less of.
LAMBDA_LIMITS: Schema = {
    "if": {
        "properties": {"execution": {"const": "lambda"}},
        "not": {"required": ["service"]},
    },
    "then": {
        "properties": {
            "lambda": {
                "properties": {
                    "memory": {"maximum": LAMBDA_MEMORY_MIB_MAX},
                    "timeout": {"maximum": LAMBDA_TIMEOUT_S_MAX},
                }
            }
        }
    },
}


def check_place(function: Function, node: Node, reading: Reading) -> None:
    """Note the faults of a function that its place cannot run."""
    block = node.child("lambda") if isinstance(node, Mapping) else None
    place = node.child("execution") if isinstance(node, Mapping) else None
    kept = function.execution == "host" and function.function.handler
    if function.host.warm and function.on_host and not kept:
        message = "warm keeps the process of a handler: write `execution: host` and `handler:`"
        reading.fault(node, f"{function.path}.host.warm", message)
    _check_warm_min(function, node, reading)
    if function.endpoint is not None and function.endpoint.enabled:
        for why in endpoint_faults(function):
            reading.fault(node, f"{function.path}.endpoint", why)
    for key, message in place_faults(function):
        if key == "execution":
            reading.fault(place or node, f"{function.path}.{key}", message)
        else:
            entry = block.entry(key) if isinstance(block, Mapping) else None
            at = node if entry is None else entry.value
            reading.fault(at, f"{function.path}.lambda.{key}", message)


def _check_warm_min(function: Function, node: Node, reading: Reading) -> None:
    """Note why no worker of the function can be kept loaded."""
    gpu = function.gpu
    if gpu is None or not (gpu.warm_min or gpu.warm_loads):
        return
    key, why = "warm_min", floor_problem(gpu.request)
    if not gpu.warm_min:
        why = "is missing: `warm_loads` is what its workers load"
    elif function.host.warm:
        why = "keeps workers of operations: `host.warm` keeps a program, which only a job starts"
    elif function.foreign and gpu.request.workload is None:
        why = "keeps workers by the name of a workload: write `workload:`"
    elif not all(one.of_host for one in function.data.values()):
        why = "does not fetch declared data sets: use data that its hosts have (`gpu: {data: …}`)"
    elif why is None:
        key, why = "warm_loads", loads_problem(gpu.loads)
    if why is not None:
        block = node.child("gpu") if isinstance(node, Mapping) else None
        entry = block.entry(key) if isinstance(block, Mapping) else None
        at = block or node if entry is None else entry.value
        reading.fault(at, f"{function.path}.gpu.{key}", f"{key} {why}")


def endpoint_faults(function: Function) -> Iterator[str]:
    """Why a function cannot answer calls, a sentence each."""
    if function.execution != "host" or not function.function.handler:
        yield "calls are answered by the process of a handler: write `execution: host`, `handler:`"
    if not function.queued or function.group is not None:
        yield "an endpoint is opened by a job of its function alone: leave out `job: none`, `group`"
    if function.gpu is not None and function.gpu.slo is not None:
        yield "an endpoint has no length that could be promised: leave out `slo`"


def place_faults(function: Function) -> Iterator[tuple[str, str]]:
    """Why the declared place cannot run a function: `execution` or a key of `lambda`, and a
    sentence."""
    declared = function.function
    if function.service is not None and function.execution == "lambda":
        return  # the platform's limits are its own
    if function.execution == "lambda":
        for key, value, most, unit in (
            ("memory", declared.memory_mib, LAMBDA_MEMORY_MIB_MAX, "MB"),
            ("timeout", declared.timeout_s, LAMBDA_TIMEOUT_S_MAX, "s"),
        ):
            if value > most:
                message = f"{value}: Lambda has {most} {unit} at most; write `execution: host`"
                yield key, message
        return
    if declared.layers:
        yield (
            "layers",
            "a host has no layers: write `host: {image: …}`, or add the files by `extra_payload`",
        )
    if declared.runtime == "image":
        message = "an image of Lambda's runs in Lambda alone: name one by `host: {image: …}`"
        yield "runtime", message
    if function.foreign:
        message = f"{function.execution} runs code by our runner: write `completion: result`"
        yield "execution", message
    if (batch := function.host.batch) is not None:
        yield from _batch_faults(function, batch)
    if function.execution == "auto" and function.host.image is not None:
        message = "auto may run in Lambda, which has no such image: write `execution: host`"
        yield "execution", message


def _batch_faults(function: Function, batch: Batch) -> Iterator[tuple[str, str]]:
    if function.execution == "auto":
        message = "auto would try Lambda first, which has no card: write `execution: host`"
        yield "execution", message
    if function.gpu is not None:
        message = "in Batch its queue gives the card: leave out `gpu`, or `host: {batch: …}`"
        yield "execution", message
    most_s = HOST_TIMEOUT_S_MAX - batch.start_s
    if function.function.timeout_s > most_s:
        message = f"{function.function.timeout_s}: with {batch.start_s:g} s for `host.batch.start`"
        yield "timeout", f"{message} {most_s:g} s are left, as SQS keeps a message for 12 h"
    if function.endpoint is not None and function.endpoint.enabled:
        yield "execution", "no caller reaches a container of Batch's: leave out `endpoint`"
