"""The YAML file of a run: read as the definition file is, with errors at file:line:column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from corekit.errors import AppError, invalid
from corekit.suggest import one_of_known
from fdl.schema.schema import Faulty, Reading
from fdl.text.compose import compose
from fdl.text.nodes import Location
from gpu_scheduler.model import Request
from gpu_scheduler.promises import PromisedStep, ordered_steps
from simulator.workloads import replay, traces
from simulator.workloads.model import (
    ClosedLoop,
    HostSpec,
    Run,
    Source,
    Workflow,
    Workload,
    checked,
)
from simulator.workloads.run_keys import RUN, AnySource, Draft, TraceFile

#: Memory of a device of Alibaba's trace, where the run names none: most of its devices have it.
_ALIBABA_MIB = 16384


def load_run(path: Path) -> Run:
    """The run of a file, with its traces. Raises INVALID with file:line:column."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise invalid(f"{path} cannot be read: {error.strerror}") from error
    return parse_run(data, str(path), path.parent)


def parse_run(data: bytes | str, name: str, folder: Path) -> Run:
    """The run of a text; the files of its traces are relative to `folder`."""
    composed = compose(data, name)
    reading = Reading(source=composed.source)
    try:
        draft = RUN.read(composed.root, "", reading)
        reading.end(0)
    except Faulty:
        raise reading.combined_error() from None
    return _Assembly(reading, composed.root.at, folder).run(draft)


@dataclass(frozen=True, slots=True)
class _Assembly:
    """The step from a draft to a run: traces are read, names are resolved."""

    reading: Reading
    root: Location
    folder: Path

    def run(self, draft: Draft) -> Run:
        workloads = {name: replace(one, name=name) for name, one in draft.run.workloads.items()}
        workflows = {name: _named(name, one) for name, one in draft.run.workflows.items()}
        for name, one in workflows.items():
            with self._at(f"workflows.{name}"):
                _check_graph(one)
        hosts, load = draft.run.hosts, []
        for index, source in enumerate(draft.load):
            with self._at(f"load[{index}]"):
                found, of_journal = self._source(source, workloads, workflows)
            hosts = hosts or of_journal
            load.append(found)
        with self._at("hosts"):
            run = replace(draft.run, hosts=hosts, workloads=workloads, load=tuple(load))
            return checked(replace(run, workflows=workflows))

    def _source(
        self,
        source: AnySource,
        workloads: dict[str, Workload],
        workflows: Mapping[str, Workflow],
    ) -> tuple[Source | ClosedLoop, tuple[HostSpec, ...]]:
        if isinstance(source, TraceFile):
            trace, hosts = _read_trace(source, self.folder)
            workloads |= trace.workloads
            return trace, hosts
        workflow = getattr(source, "workflow", None)
        name = getattr(source, "workload", "")
        if workflow is not None and not name:
            if workflow not in workflows:
                hint = one_of_known(str(workflow), tuple(workflows))
                raise invalid(f"the workflow {workflow!r} is not declared{hint}")
            return source, ()
        if not name or workflow is not None:
            raise invalid("a source has a workload or a workflow, and not both")
        if name not in workloads:
            hint = one_of_known(str(name), tuple(workloads))
            raise invalid(f"the workload {name!r} is not declared{hint}")
        return source, ()

    @contextmanager
    def _at(self, path: str) -> Iterator[None]:
        """Give errors the location of a key."""
        try:
            yield
        except AppError as error:
            at = self.reading.locations.get(path, self.root)
            raise self.reading.error_at(at, path, error.message) from None


def _named(name: str, workflow: Workflow) -> Workflow:
    """A workflow with its name, and workloads of its own."""
    steps = tuple(
        replace(one, workload=replace(one.workload, name=f"{name}.{one.name}"))
        for one in workflow.steps
    )
    return replace(workflow, name=name, steps=steps)


def _check_graph(workflow: Workflow) -> None:
    """Raises INVALID for a cycle, a step that is named twice, and an unknown one."""
    ordered_steps(
        tuple(
            PromisedStep(name=one.name, job=one.name, request=Request(), after=one.after)
            for one in workflow.steps
        )
    )


def _read_trace(file: TraceFile, folder: Path) -> tuple[traces.Trace, tuple[HostSpec, ...]]:
    """A trace from its files, and the hosts of a journal. Raises INVALID for another layout."""
    paths = {key: folder / name for key, name in file.files.items()}
    template = traces.template_of(file.loading_s, file.memory_mib, file.compute_pct)
    hosts: tuple[HostSpec, ...] = ()
    if file.layout == "azure2019":
        trace = traces.azure_2019(
            paths["invocations"],
            paths["durations"],
            paths.get("app_memory"),
            template,
            functions_max=file.functions_max,
        )
    elif file.layout == "azure2021":
        trace = traces.azure_2021(paths["file"], template, functions_max=file.functions_max)
    elif file.layout == "alibaba2023":
        device_mib = file.memory_mib or _ALIBABA_MIB
        trace = traces.alibaba_2023(paths["file"], template, device_mib=device_mib)
    else:
        entries = replay.entries_of(paths["folder"])
        trace = replay.replayed(entries, file.loading_s)
        hosts = replay.hosts_of(entries)
    return replace(trace, start_s=file.start_s, speed=file.speed), hosts
