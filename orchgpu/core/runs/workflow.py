"""One deployed workflow as the orchestrator sees it: the registry record that `deploy` writes.

Stored as JSON (`corekit.decode`) at `workflows/<name>.json` in the state bucket, after the records
of its functions; removed before them.
"""

from __future__ import annotations

from collections.abc import Mapping

from corekit.values import Value, field
from gpu_scheduler.promises import Slo
from orchgpu.core.notify import Target


class Feed(Value):
    """Files of a step's results that another step takes: those below a place, with a suffix."""

    step: str  #: that writes them
    bucket: str
    prefix: str = ""  #: without a trailing slash
    suffixes: tuple[str, ...] = ()  #: empty = all
    #: Only files of results for which it is true (`corekit.conditions`); "" = of all.
    when: str = ""

    def takes(self, bucket: str, key: str) -> bool:
        """Whether the feed takes a file of the step's results."""
        below = key.startswith(f"{self.prefix}/") if self.prefix else True
        suffix = not self.suffixes or key.endswith(self.suffixes)
        return bucket == self.bucket and below and suffix


class WorkflowStep(Value):
    """One function of a workflow."""

    name: str  #: of the function
    feeds: tuple[Feed, ...] = ()  #: empty = the step takes the input of the run
    each: bool = False  #: a job for each file, instead of one for all


class Workflow(Value):
    """The settings by which the orchestrator serves one workflow."""

    name: str
    revision: str  #: hash of the plan that made it
    queue_url: str  #: events about inputs, and about ends of steps
    dead_letter_url: str
    bucket: str  #: of its runs: the intermediate bucket of the first step
    input_bucket: str
    input_prefix: str = ""  #: without a trailing slash
    input_suffixes: tuple[str, ...] = ()
    steps: tuple[WorkflowStep, ...]  #: every step after those that feed it
    deadline_s: float | None = None  #: a run ends by then after its input was stored
    max_cost_usd: float | None = None  #: of a run, over all its jobs
    #: The objectives of a run: it is promised, or refused, before its first step.
    slo: Slo | None = None
    deployed_at_s: float = 0.0  #: wall clock of the store: an upload before it starts no run
    owners: Mapping[str, str] = field(default_factory=dict)  #: accounts that own the buckets
    notify: tuple[Target, ...] = ()  #: notified of the end of each run

    @property
    def counts_cost(self) -> bool:
        """Whether the cost of its runs is counted: they have a cap, or an objective of cost."""
        promised = self.slo is not None and self.slo.cost_usd is not None
        return promised or self.max_cost_usd is not None
