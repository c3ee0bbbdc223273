"""`gpu: {warm_min, warm_loads}`: what is read, refused with its place, and recorded."""

from __future__ import annotations

import pytest

from tests.unit.fdl.test_host import file, message, record_of
from tests.unit.fdl.test_plan import wanted

LOADS = "{sequence_search: {database: proteins}}"


def with_gpu(keys: str, text: str = "") -> str:
    return (text or file("lambda")).replace("{memory: 1GiB}", f"{{{keys}}}")


def test_a_record_has_the_floor_with_its_workload() -> None:
    record = record_of(with_gpu(f"memory: 1GiB, warm_min: 2, warm_loads: {LOADS}"))
    floor = record.floor
    assert floor is not None
    assert floor.workers_min == 2
    assert floor.loads == (("sequence_search", '{"database": "proteins"}'),)
    assert floor.request == record.request
    assert floor.request.workload


def test_without_it_nothing_is_recorded() -> None:
    for keys in ("memory: 1GiB", "memory: 1GiB, warm_min: 0"):
        record = record_of(with_gpu(keys))
        assert (record.floor, record.warm_loads) == (None, ())


def test_a_plan_states_what_is_kept() -> None:
    (function,) = wanted(with_gpu(f"memory: 1GiB, warm_min: 2, warm_loads: {LOADS}"))
    (notice,) = function.notices
    assert notice.startswith("fold: hosts keep at least 2 of its workers loaded (sequence_search)")


PROGRAM = file("host", more="    host: {warm: true}\n").replace(
    "init_script: fold.sh", "handler: fold.work"
)
DATA = file("lambda", more="    data: {proteins: 's3://lab/proteins.fasta'}\n")


LONG = "{" + ", ".join(f"op{n}: {{model: {'m' * 900}}}" for n in range(9)) + "}"


@pytest.mark.parametrize(
    ("loads", "why"),
    [
        (LONG, "at most 8192 bytes as JSON, not 83"),
        ("{" + ", ".join(f"op{n}: {{}}" for n in range(33)) + "}", "at most 32 operations, not 33"),
        ("{op: {model: " + "m" * 1000 + "}}", "at most 1000 characters of arguments"),
    ],
)
def test_loads_that_the_scheduler_would_refuse_are_found_at_their_key(loads: str, why: str) -> None:
    text = with_gpu(f"memory: 1GiB, warm_min: 2, warm_loads: {loads}")
    line, row = next((n, one) for n, one in enumerate(text.splitlines(), 1) if "warm_" in one)
    found = message(text)
    assert found.startswith(f"f:{line}:{row.index(loads) + 1}:")
    assert "gpu.warm_loads: warm_loads has" in found
    assert why in found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (with_gpu("warm_min: 1"), "needs a size: write `memory`, or `sharing: exclusive`"),
        (with_gpu("compute: 50, warm_min: 1"), "needs a size"),
        (with_gpu("memory: 1GiB, count: 2, warm_min: 1"), "one device"),
        (with_gpu("memory: 1GiB, batch: {}, warm_min: 1"), "`batch` has a process of its own"),
        (with_gpu("memory: 1GiB, middleware: rcuda, warm_min: 1"), "middleware has others"),
        (with_gpu("memory: 1GiB, warm_min: 1", PROGRAM), "`host.warm` keeps a program"),
        (with_gpu("memory: 1GiB, warm_min: 1", DATA), "does not fetch declared data sets"),
        (with_gpu(f"memory: 1GiB, warm_loads: {LOADS}"), "is missing"),
        (with_gpu("memory: 1GiB, warm_min: 65"), "0…64"),
    ],
)
def test_what_cannot_be_kept_is_refused_at_its_key(text: str, why: str) -> None:
    found = message(text)
    line = next(n for n, one in enumerate(text.splitlines(), 1) if "warm_" in one)
    assert found.startswith(f"f:{line}:")
    assert why in found
