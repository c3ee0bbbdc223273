"""The device of the next run of a graph, among those of a lease."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from remote_gpu.client.affinity import PENALTY_RUNS, Affinity, Load

BUSY = Load(free=False, slowdown=2.0)


def test_a_program_stays_on_the_device_with_its_graph_while_that_is_free() -> None:
    table = Affinity([0, 1])
    for _ in range(3):
        assert table.begin("g", [1], {}) == 1
        table.end(1)


def test_a_run_begins_on_any_free_device_before_it_waits() -> None:
    table = Affinity([0, 1])
    assert table.begin("g", [0], {}) == 0
    assert table.begin("g", [0], {}) == 1, "cold, but at once"


def test_another_lease_computes_on_the_device_with_the_graph() -> None:
    assert Affinity([0, 1]).begin("g", [0], {0: BUSY}) == 1


def test_among_busy_devices_one_without_the_graph_is_ten_runs_behind() -> None:
    loads = {0: Load(free=False, slowdown=1.0), 1: Load(free=False, slowdown=1.0)}
    table = Affinity([0, 1])
    chosen = [table.begin("g", [0], loads) for _ in range(PENALTY_RUNS + 3)]
    assert chosen == [0] * (PENALTY_RUNS + 1) + [1, 0], "both have as many runs to wait for: 12"


def test_a_crowded_device_loses_its_program() -> None:
    table = Affinity([0, 1])
    nearly = Load(free=False, slowdown=PENALTY_RUNS + 2.0)
    crowded = Load(free=False, slowdown=PENALTY_RUNS + 2.5)
    assert table.begin("g", [0], {0: nearly, 1: BUSY}) == 0
    table.end(0)
    assert table.begin("g", [0], {0: crowded, 1: BUSY}) == 1


def test_a_device_that_lacks_the_memory_is_chosen_no_more() -> None:
    table = Affinity([0, 1])
    assert table.begin("g", [], {0: BUSY}) == 1
    assert table.refuse(1, "g"), "the other one may have it"
    assert table.begin("g", [], {0: BUSY}) == 0
    assert not table.refuse(0, "g")
    table.end(0)
    table.end(1)
    assert table.begin("g", [], {0: BUSY}) == 1, "memory may have been freed"
    assert table.begin("other", [0], {}) == 0


loads = st.builds(Load, free=st.booleans(), slowdown=st.floats(1.0, 50.0))
steps = st.lists(st.tuples(st.booleans(), st.tuples(loads, loads, loads)), max_size=40)


@given(steps, st.sets(st.integers(0, 2)))
def test_no_run_waits_while_a_device_is_free(
    played: list[tuple[bool, tuple[Load, Load, Load]]], loaded: set[int]
) -> None:
    """Nor does it begin cold on one free device while another has the graph."""
    table, runs = Affinity([0, 1, 2]), [0, 0, 0]
    for begins, seen in played:
        if not begins:
            ended = next((one for one in range(3) if runs[one]), None)
            if ended is not None:
                table.end(ended)
                runs[ended] -= 1
            continue
        by_number = dict(zip(itertools.count(), seen, strict=False))
        idle = [one for one in range(3) if not runs[one] and by_number[one].free]
        chosen = table.begin("g", loaded, by_number)
        if idle:
            assert chosen in ([one for one in idle if one in loaded] or idle)
        runs[chosen] += 1
