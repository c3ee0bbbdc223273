"""What a job costs the scheduler's core and its journal, with and without its past in the record.

    journal_bytes_…         of one job in the journal: of one that succeeds at `once`, and of one
                            whose first attempt fails (`again`); compared with the same without the
                            past (`record_leases_max` and `record_attempts_max` 0)
    bytes_…_KIND            the parts of these bytes, by kind of change
    core_us_…               time of all decisions of a job, its entries encoded; compared as before
    record_bytes_…          of the record that stays when the job has ended

Decisions are those of the core alone, timed in turns with and without the past, in processor time:
an attempt is granted, accepted, staged; its session opens, frees its device, closes; the job ends.

    python -m benchmarks.scheduler.records [--json] [--jobs N] [--rounds N]
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from typing import Any

from benchmarks import report
from benchmarks.scale import values
from corekit.budget import Budget
from corekit.cli.progress import Bar
from corekit.decode import encode_json
from corekit.ids import HostId, IdSource, JobId, SessionId
from corekit.values import Value
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.model import Lease
from gpu_scheduler.parameters import Parameters
from gpu_scheduler.policy_registry import installed_policies
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.protocol.changes import CHANGE_NAMES, Entry, encode_entry

KEPT = Parameters()
NONE = Parameters(record_leases_max=0, record_attempts_max=0)
_WITHOUT = "without the past"


class Core:
    """A machine that performs whole jobs, with what they write and take."""

    def __init__(self, parameters: Parameters) -> None:
        self._system = values.large(1.7e9, hosts=16, jobs=10**9)
        self._machine = SchedulerMachine(Budget(), IdSource(1), parameters, installed_policies())
        self._at_s = 1.0
        self.bytes: Counter[str] = Counter()  #: of all jobs, by kind of change
        self.took_s = 0.0
        self._handle(on.EpochBegan)
        for number in range(self._system.hosts):
            op = values.hello(self._system, number)
            self._handle(on.HostAsked, host=op.host, reply_to="", op=op)
        self.bytes.clear()
        self.took_s = 0.0

    def perform(self, number: int, attempts: int) -> None:
        """One job whose last attempt succeeds."""
        holder, revision = JobId(f"{number:040x}"), 0
        for attempt in range(1, attempts + 1):
            asked = ops.Attempt(
                holder=holder,
                n=attempt,
                revision=revision,
                request=values.request(self._system, 50),
                handle=f"handle-{number}",
                block=values.block(self._system, number),
            )
            answer = self._ask(asked)
            assert isinstance(answer, answers.AttemptAnswer), answer
            assert answer.granted is not None
            assert answer.record is not None
            self._ran(holder, answer.granted.lease)
            if attempt < attempts:
                failed = ops.FailAttempt(
                    holder=holder,
                    revision=answer.record.revision,
                    reason="EXIT_NONZERO",
                    detail="the script exited with 3",
                    retry_at_s=1.0,
                )
                failure = self._ask(failed)
                assert isinstance(failure, answers.RecordAnswer), failure
                assert failure.record is not None
                revision = failure.record.revision
        self._ask(ops.Finish(holder=holder, outcome="SUCCEEDED", reason="NONE", detail=""))

    def _ran(self, holder: JobId, lease: Lease) -> None:
        host = HostId(lease.shares[0].host)
        self._ask(ops.Renew(lease=lease.id))
        self._ask(ops.StagedOp(holder=holder, lease=lease.id, connect_by_s=60.0))
        for state in ("opened", "freed", "closed"):
            op = host_ops.SessionChange(
                lease=lease.id,
                state=host_ops.SessionState(state),
                nonce="n",
                loading_s=None if state == "opened" else 1.3,
            )
            self._handle(on.HostAsked, host=host, reply_to="", op=op)
        cut = host_ops.Cut(lease=lease.id)
        self._handle(on.HostAsked, host=host, reply_to="", op=cut)

    def _ask(self, op: ops.Op[Value]) -> object:
        return self._handle(on.Asked, session=SessionId("orchestrator"), reply_to="r", op=op)

    def _handle(self, kind: type[Any], **fields: Any) -> object:
        self._at_s += 0.01
        event = kind(at_s=self._at_s, wall_s=1.7e9 + self._at_s, **fields)
        began_s = time.thread_time()
        decision = self._machine.handle(event)
        written = [encode_entry(entry) for entry in decision.changes]
        took_s = time.thread_time() - began_s
        self.took_s += took_s
        self.bytes["journal"] += sum(map(len, written))
        for entry in decision.changes:
            for part in entry.parts:
                self.bytes[CHANGE_NAMES[type(part)]] += len(encode_entry(Entry(parts=(part,))))
        errors = [one for one in decision.actions if isinstance(one, do.ReplyError)]
        assert not errors, errors
        replies = [one for one in decision.actions if isinstance(one, do.Reply)]
        return replies[0].answer if replies else None

    def record_bytes(self) -> int:
        """Bytes of the newest record."""
        state = self._machine.state
        return len(encode_json(state.records[next(state.record_order.newest())]))


def figures(name: str, attempts: int, jobs: int, rounds: int) -> list[report.Figure]:
    """The figures of jobs with so many attempts."""
    kept, none = Core(KEPT), Core(NONE)
    kept_us: list[float] = []
    none_us: list[float] = []
    for round_ in range(rounds):
        for core, took_us in ((kept, kept_us), (none, none_us)):
            core.took_s = 0.0
            for number in range(jobs):
                core.perform(round_ * jobs + number, attempts)
            took_us.append(1e6 * core.took_s / jobs)
    done = jobs * rounds

    def against(metric: str, unit: str, value: float, baseline: float) -> report.Figure:
        return report.compared(metric, value, unit, f"{_WITHOUT}, {unit}", baseline)

    kinds = [kind for kind, _ in kept.bytes.most_common() if kind != "journal"]
    journal = (kept.bytes["journal"] / done, none.bytes["journal"] / done)
    core_us = (statistics.median(kept_us), statistics.median(none_us))
    return [
        against(f"journal_bytes_{name}", "bytes", *journal),
        *(
            report.Figure(f"bytes_{name}_{kind}", kept.bytes[kind] / done, "bytes")
            for kind in kinds
        ),
        against(f"record_bytes_{name}", "bytes", kept.record_bytes(), none.record_bytes()),
        against(f"core_us_{name}", "µs", *core_us),
    ]


def main() -> None:
    """Measure and show."""
    parser = report.arguments(__doc__)
    parser.add_argument("--jobs", type=int, default=1000, help="of each round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    bar, found = Bar(2, quiet=options.json), []
    for attempts, name in ((1, "once"), (2, "again")):
        found += figures(name, attempts, options.jobs, options.rounds)
        bar.draw(attempts, name)
    bar.clear()
    report.show("scheduler.records", found, as_json=options.json)


if __name__ == "__main__":
    main()
