"""Execution and loading times of workloads, learned from ended leases. Never enforced.

For each tenant, workload and device model the newest observations are kept, and quantiles weigh
each half as much as one `HALF_LIFE` observations newer. An execution is the time from the first
session to the release of the shares, without the time that its workers spent loading. Only leases
that their holder gave back count: any other end cuts an execution short. Of code that failed only a
cold start counts, with its loading time: a failure may have come before the work, or before the
first use of a model. Hosts and functions of older versions do not report failures.

The start of a function is much longer if it starts a sandbox. The starts in new and in used
sandboxes are learned apart, with the part of new ones: one in twenty is rarely among the newest
observations, but its time and its part are remembered. Where a function does not report its
sandbox (older versions), its start counts among those in used ones.

The *way* of a workload is the time of its jobs outside of their lease and their waiting, as their
orchestrator measured it. It depends on no device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_scheduler.model import EndReason
from gpu_scheduler.warm import workload_key

#: The most observations of each kind of one workload on one device model.
OBSERVATIONS_MAX = 32
#: Observations after which the weight of an observation has halved.
HALF_LIFE = 8
#: The part of new sandboxes is an average of about this many functions; of all while they are less.
SANDBOXES_MAX = 64
#: The most workloads, each on one device model; the one without a new observation for longest is
#: forgotten.
WORKLOADS_MAX = 4096

_NOTHING: Mapping[str, Times] = {}

#: Ends of a lease after which its execution was complete; None = it gave its shares back first.
COMPLETE = (None, EndReason.DONE, EndReason.RELEASED)


class WorkloadOn(NamedTuple):
    """A workload of a tenant on one device model."""

    tenant: str
    workload: str
    model: str

    @property
    def id(self) -> str:
        """Its id in lists: the published key, and the model."""
        return f"{workload_key(self.tenant, self.workload)}/{self.model}"


@dataclass(slots=True)
class Times:
    """The observations of one workload on one device model, the oldest first."""

    executions_s: tuple[float, ...] = ()
    loadings_s: tuple[float, ...] = ()  #: of cold starts, and of loads ahead
    starts_s: tuple[float, ...] = ()  #: from the grant to the first session, in used sandboxes
    new_starts_s: tuple[float, ...] = ()  #: the same, of functions that started a sandbox
    new_part: float = 0.0  #: of the functions of known sandboxes
    sandboxes: int = 0  #: known, and counted for that part; at most `SANDBOXES_MAX`
    cold_starts: int = 0  #: its workers loaded
    warm_starts: int = 0  #: its workers loaded nothing, of a workload that has loaded before
    runs: int = 0  #: executions: with these, with unknown starts, and with nothing to load
    _quantiles: dict[tuple[str, float], float] = field(default_factory=dict)  #: cache

    def execution_s(self, quantile: float) -> float | None:
        """The quantile of execution times; None = not observed yet."""
        return self._quantile("executions_s", quantile)

    def loading_s(self, quantile: float) -> float | None:
        """The quantile of loading times of cold starts; None = not observed yet."""
        return self._quantile("loadings_s", quantile)

    def start_s(self, quantile: float) -> float | None:
        """The quantile of times from the grant to the first session; None = not observed yet.

        New and used sandboxes weigh by the part of new ones.
        """
        if not self.new_starts_s:
            return self._quantile("starts_s", quantile)
        if ("start_s", quantile) not in self._quantiles:
            used, new = _weighted(self.starts_s), _weighted(self.new_starts_s)
            mixed = [*_scaled(used, 1 - self.new_part), *_scaled(new, self.new_part)]
            self._quantiles["start_s", quantile] = _quantile_of(mixed, quantile)
        return self._quantiles["start_s", quantile]

    def _quantile(self, name: str, quantile: float) -> float | None:
        observations: tuple[float, ...] = getattr(self, name)
        if not observations:
            return None
        if (name, quantile) not in self._quantiles:
            self._quantiles[name, quantile] = weighted_quantile(observations, quantile)
        return self._quantiles[name, quantile]


def weighted_quantile(observations: tuple[float, ...], quantile: float) -> float:
    """The least observation with at least this part of the weight at or below it.

    The newest, the last one, has the weight 1.
    """
    return _quantile_of(_weighted(observations), quantile)


def _weighted(observations: tuple[float, ...]) -> list[tuple[float, float]]:
    newest = len(observations) - 1
    return [(value, 0.5 ** ((newest - i) / HALF_LIFE)) for i, value in enumerate(observations)]


def _scaled(weighted: list[tuple[float, float]], total: float) -> list[tuple[float, float]]:
    factor = total / (sum(weight for _, weight in weighted) or 1.0)
    return [(value, factor * weight) for value, weight in weighted]


def _quantile_of(weighted: list[tuple[float, float]], quantile: float) -> float:
    weighted = sorted(weighted)
    due = quantile * sum(weight for _, weight in weighted)
    for value, weight in weighted:
        due -= weight
        if due <= 0:
            return value
    return weighted[-1][0]


class LearnedTimes:
    """The times of all workloads, bounded in number. Derived from ended leases, and durable."""

    def __init__(self) -> None:
        self._times: dict[WorkloadOn, Times] = {}  #: the longest without an observation first
        #: (tenant, workload) → times by device model; every change makes a new mapping.
        self._by_workload: dict[tuple[str, str], dict[str, Times]] = {}
        #: (tenant, workload) → ways; the longest without an observation first.
        self._ways: dict[tuple[str, str], tuple[float, ...]] = {}

    def __len__(self) -> int:
        return len(self._times)

    def of(self, tenant: str, workload: str | None, model: str) -> Times | None:
        """The times of a workload; None = nothing was learned."""
        return None if workload is None else self._times.get(WorkloadOn(tenant, workload, model))

    def of_workload(self, tenant: str, workload: str | None) -> Mapping[str, Times]:
        """The times of a workload by device model; another mapping after every change."""
        if workload is None:
            return _NOTHING
        return self._by_workload.get((tenant, workload), _NOTHING)

    def items(self) -> Iterable[tuple[WorkloadOn, Times]]:
        """All workloads, the longest without an observation first."""
        return self._times.items()

    def on_models(
        self, tenant: str, workload: str | None, models: Iterable[str]
    ) -> Iterator[tuple[str, Times]]:
        """The times of a workload on those of the device models for which there are some."""
        for model in models:
            times = self.of(tenant, workload, model)
            if times is not None:
                yield model, times

    def way_s(
        self, tenant: str, workload: str | None, quantile: float, *, runs_min: int = 1
    ) -> float | None:
        """The quantile of the times of jobs outside of their lease and their waiting.

        None = observed less often than `runs_min` times.
        """
        ways_s = () if workload is None else self._ways.get((tenant, workload), ())
        return weighted_quantile(ways_s, quantile) if len(ways_s) >= runs_min else None

    def ways(self) -> Iterable[tuple[tuple[str, str], tuple[float, ...]]]:
        """The ways of all workloads by tenant and workload, the longest unobserved first."""
        return self._ways.items()

    def learn_ways(self, tenant: str, workload: str, ways_s: tuple[float, ...]) -> None:
        """Add observations of a way, the newest last."""
        before = self._ways.pop((tenant, workload), ())
        self._ways[tenant, workload] = (*before, *ways_s)[-OBSERVATIONS_MAX:]
        if len(self._ways) > WORKLOADS_MAX:
            del self._ways[next(iter(self._ways))]

    def learn(
        self,
        key: WorkloadOn,
        held_s: float | None,
        loading_s: float | None,
        start_s: float | None = None,
        ahead_s: float | None = None,
        new_sandbox: bool | None = None,
    ) -> None:
        """Add one execution: the shares were held this long, of which workers loaded that long.

        `held_s` None: its code failed, and only its cold start counts, if it had one. `start_s`:
        before that, from the grant to the first session; `ahead_s`: for which its worker had loaded
        before the lease had its shares; `new_sandbox`: its function started one, None = unknown.
        """
        if held_s is None and not loading_s:
            return
        whole_s = (loading_s or 0.0) + (ahead_s or 0.0)
        before = self._times.pop(key, None) or Times()
        executions = () if held_s is None else (max(0.0, held_s - (loading_s or 0.0)),)
        loadings = (whole_s,) if whole_s else ()
        starts = () if held_s is None or start_s is None else (max(0.0, start_s),)
        used, new = ((), starts) if new_sandbox else (starts, ())
        known = bool(starts) and new_sandbox is not None
        sandboxes = min(SANDBOXES_MAX, before.sandboxes + known)
        change = (bool(new_sandbox) - before.new_part) / sandboxes if known else 0.0
        has_loaded = before.cold_starts > 0 or whole_s > 0
        warm = loading_s == 0 and has_loaded  # else it has nothing to load, as yet
        times = Times(
            executions_s=(*before.executions_s, *executions)[-OBSERVATIONS_MAX:],
            loadings_s=(*before.loadings_s, *loadings)[-OBSERVATIONS_MAX:],
            starts_s=(*before.starts_s, *used)[-OBSERVATIONS_MAX:],
            new_starts_s=(*before.new_starts_s, *new)[-OBSERVATIONS_MAX:],
            new_part=before.new_part + change,
            sandboxes=sandboxes,
            cold_starts=before.cold_starts + bool(loading_s),
            warm_starts=before.warm_starts + warm,
            runs=before.runs + len(executions),
        )
        self._put(key, times)

    def restore(self, key: WorkloadOn, times: Times) -> None:
        """Replace the times of a workload by those of a snapshot."""
        self._times.pop(key, None)
        self._put(key, times)

    def starts(self) -> Mapping[tuple[str, str], tuple[int, int]]:
        """Cold and warm starts by tenant and workload, over all device models."""
        total: dict[tuple[str, str], tuple[int, int]] = {}
        for key, times in self._times.items():
            cold, warm = total.get(key[:2], (0, 0))
            total[key[:2]] = cold + times.cold_starts, warm + times.warm_starts
        return total

    def _put(self, key: WorkloadOn, times: Times) -> None:
        """Add times as the newest; above the bound, forget the oldest ones."""
        self._times[key] = times
        name = (key.tenant, key.workload)
        self._by_workload[name] = {**self._by_workload.get(name, {}), key.model: times}
        if len(self._times) > WORKLOADS_MAX:
            self._forget(next(iter(self._times)))

    def _forget(self, key: WorkloadOn) -> None:
        del self._times[key]
        name = (key.tenant, key.workload)
        left = {model: one for model, one in self._by_workload[name].items() if model != key.model}
        if left:
            self._by_workload[name] = left
        else:
            del self._by_workload[name]
