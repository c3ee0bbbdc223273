"""The workflow that a file means: an output that another function's input takes is an edge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import product

from corekit.values import Value
from fdl.model import Document, Function, Storage


class StorageNode(Value):
    """A path in S3 at which the workflow starts or ends."""

    path: str  #: bucket/prefix
    suffixes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """`bucket/prefix *.wav *.mp3`."""
        return " ".join((self.path, *(f"*{suffix}" for suffix in self.suffixes)))


class Step(Value):
    """One function."""

    name: str
    device: str  #: the devices of a job, for people; "" = none
    group: str = ""  #: steps of one group share a sandbox


class Edge(Value):
    """Objects that `source` writes at `place` start `target`."""

    source: str
    target: str
    place: StorageNode


class Graph(Value):
    """Everything in the order of the file."""

    steps: tuple[Step, ...]
    edges: tuple[Edge, ...]
    entries: tuple[
        tuple[StorageNode, str], ...
    ]  #: inputs that no function writes, and their readers
    exits: tuple[tuple[str, StorageNode], ...]  #: writers, and outputs that no function reads


def graph_of(document: Document) -> Graph:
    """The workflow of a document."""
    functions = document.functions.aws
    edges = tuple(
        Edge(source=writer.name, target=reader.name, place=_place(output))
        for writer in functions
        for output in writer.function.output
        for reader in functions
        if any(overlap(output, source) for source in reader.user_input)
    )
    entries = tuple(
        (_place(source), reader.name)
        for reader in functions
        for source in reader.user_input
        if not any(overlap(o, source) for f in functions for o in f.function.output)
    )
    exits = tuple(
        (writer.name, _place(output))
        for writer in functions
        for output in writer.function.output
        if not any(overlap(output, source) for f in functions for source in f.user_input)
    )
    steps = tuple(Step(name=f.name, device=_device(f), group=f.group or "") for f in functions)
    return Graph(steps=steps, edges=edges, entries=entries, exits=exits)


def feeding(step: Function, steps: Sequence[Function]) -> tuple[tuple[Function, Storage], ...]:
    """The steps that write to a step's inputs, each with the input."""
    return tuple(
        (writer, source)
        for source in step.user_input
        for writer in steps
        if any(overlap(output, source) for output in writer.function.output)
    )


def order(steps: Sequence[Function]) -> tuple[Function, ...]:
    """Every step after those that feed it. Total for steps that `lint` passed."""
    named = {step.name: step for step in steps}
    feeders = {step.name: [writer.name for writer, _ in feeding(step, steps)] for step in steps}
    return tuple(named[name] for name in TopologicalSorter(feeders).static_order())


def cycle(feeders: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    """One cycle of a graph, each node after one that feeds it; () = there is none."""
    try:
        TopologicalSorter(feeders).prepare()
    except CycleError as error:
        return tuple(error.args[1][:-1])
    return ()


def _place(storage: Storage) -> StorageNode:
    return StorageNode(path=str(storage.path), suffixes=storage.suffixes)


def _device(function: Function) -> str:
    if function.gpu is None:
        return ""
    request, memory = function.gpu.request, function.gpu.memory
    kinds = "|".join(request.kinds) or "any device"
    size = f", {memory}" if any(memory) else ""
    return f"{request.count} × {kinds}{size}"


def overlap(left: Storage, right: Storage) -> bool:
    """Whether one new object may match both."""
    prefixes = (left.path.key_prefix, right.path.key_prefix)
    suffixes = [
        a.endswith(b) or b.endswith(a)
        for a, b in product(left.suffixes or ("",), right.suffixes or ("",))
    ]
    same = left.path.bucket == right.path.bucket
    nested = prefixes[0].startswith(prefixes[1]) or prefixes[1].startswith(prefixes[0])
    return same and nested and any(suffixes)
