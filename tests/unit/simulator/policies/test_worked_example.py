"""The worked example of the thesis, through the core on a virtual clock.

Two devices; requests for a whole one. A lease lasts 6 steps (ResNet) or 18 (BERT) where the model
has not run before, and 2 (ResNet) or 8 (BERT) where it has. Step t: leases end, the one granted
first before the others; then requests arrive.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from gpu_scheduler.model import Device, Lease, Request, Sharing
from tests.scheduler_world import World, device

COLD_S = {"R": 6, "B": 18}
WARM_S = {"R": 2, "B": 8}

#: The example of the text: step and model of each request.
ARRIVALS = ((0, "R"), (1, "B"), (2, "R"), (3, "R"))


class Row(NamedTuple):
    """One line of the print: the step in which a request started, its model and its device."""

    at_s: int
    model: str
    device: str


class WorkedExample:
    """Users of a core, who hold each lease for the time of their model on its device."""

    def __init__(self, world: Any, devices: tuple[Device, ...]) -> None:
        self.world, self.now = world, 0
        self.rows: list[Row] = []
        self.waits_s: list[int] = []
        self.cold = 0
        self.total_s = 0  #: the step in which the last lease ended
        self._live: dict[str, tuple[int, Lease]] = {}  #: by id: end and lease
        self._loaded: dict[Row, None] = {}  #: models and devices, at step 0
        self._arrived: list[tuple[int, str]] = []
        world.host("h", *devices)
        world.alive["s1"] = None

    def run(self, arrivals: tuple[tuple[int, str], ...] = ARRIVALS) -> list[tuple[int, str, str]]:
        """The rows of these arrivals."""
        while len(self.rows) < len(arrivals) or self._live:
            for end, lease in list(self._live.values()):
                if end == self.now:
                    del self._live[lease.id]
                    self.world.release(lease)
                    self._begin()
            for at, model in arrivals:
                if at == self.now:
                    self._ask(model)
                    self._begin()
            self.world.advance(1.0)
            self._begin()
            self.now += 1
        return [(row.at_s, row.model, row.device) for row in self.rows]

    def _ask(self, model: str) -> None:
        request = Request(
            sharing=Sharing.EXCLUSIVE, tenant=model, workload=model, lease_s=COLD_S[model]
        )
        self.world.reserve(f"{len(self._arrived):03}", request)
        self._arrived.append((self.now, model))

    def _begin(self) -> None:
        """Begin to use the leases that were granted."""
        for lease in self.world.leases:
            if lease.id in self._live:
                continue
            assert self.world.renew(lease) is not None
            arrived, model = self._arrived[int(lease.attempt)]
            used = lease.shares[0].device
            warm = Row(0, model, used) in self._loaded
            self._loaded[Row(0, model, used)] = None
            self.cold += not warm
            end = self.now + (WARM_S if warm else COLD_S)[model]
            self._live[lease.id] = end, lease
            self.total_s = max(self.total_s, end)
            self.rows.append(Row(self.now, model, used))
            self.waits_s.append(self.now - arrived)


#: Each model stays on its device.
STAYS = [(0, "R", "G1"), (1, "B", "G2"), (6, "R", "G1"), (8, "R", "G1")]
#: The cycle waits for a busy device.
TURNS = [(0, "R", "G1"), (1, "B", "G2"), (6, "R", "G1"), (19, "R", "G2")]
#: As the thesis prints it.
PRINTED = [(0, "R", "G1"), (2, "R", "G2"), (6, "R", "G1"), (8, "B", "G2")]


def example(policy: str, **parameters: Any) -> WorkedExample:
    """The example under a policy, with parameters of the policy."""
    given = {f"{policy}.{name}": value for name, value in parameters.items()}
    world = World(policy=policy, policy_parameters=given)
    return WorkedExample(world, (device("G1", index=0), device("G2", index=1)))


@pytest.mark.parametrize(
    ("policy", "parameters", "rows", "total_s", "cold", "waits_s"),
    [
        ("affinity", {}, STAYS, 19, 2, 9),
        ("balance", {}, STAYS, 19, 2, 9),
        ("exclusive", {}, STAYS, 19, 2, 9),
        ("mlfq", {"buckets": 1.0}, STAYS, 19, 2, 9),
        ("rr", {"queues": "one"}, TURNS, 25, 3, 20),
        ("rr", {"queues": "device"}, TURNS, 25, 3, 20),
        ("srtf", {}, STAYS, 19, 2, 9),
        ("srtf", {"strict_head": True}, PRINTED, 26, 3, 10),
    ],
)
def test_the_rows_of_each_policy(
    policy: str,
    parameters: dict[str, Any],
    rows: list[tuple[int, str, str]],
    total_s: int,
    cold: int,
    waits_s: int,
) -> None:
    run = example(policy, **parameters)
    assert sorted(run.run()) == rows
    assert (run.total_s, run.cold, sum(run.waits_s)) == (total_s, cold, waits_s)


@pytest.mark.parametrize(
    ("queues", "fifth"), [("one", (19, "R", "G1")), ("device", (8, "R", "G1"))]
)
def test_a_fifth_request_separates_the_two_forms_of_rr(
    queues: str, fifth: tuple[int, str, str]
) -> None:
    rows = example("rr", queues=queues).run((*ARRIVALS, (4, "R")))
    assert sorted(rows) == sorted([*TURNS, fifth])
