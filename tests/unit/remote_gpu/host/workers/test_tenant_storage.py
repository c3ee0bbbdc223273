"""What hosts keep for tenants: a limit for all of them, the longest unused goes first."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from remote_gpu.host.workers.tenant_storage import (
    HOST_BYTES_MAX,
    StoredItem,
    evict,
    limit_bytes,
    surplus,
)

ROOT = Path("/kept")


def item(tenant: str, name: str, used: int, size: int = 10) -> StoredItem:
    return StoredItem(used, ROOT / tenant / name, size)


def test_the_least_recently_used_item_is_evicted_first() -> None:
    kept = [item("a", "1", 5), item("a", "2", 1), item("b", "1", 3), item("b", "2", 9)]
    assert surplus(kept, 40) == []
    assert surplus(kept, 39) == [kept[1]]
    assert surplus(kept, 20) == [kept[1], kept[2]]
    assert surplus(kept, 0) == sorted(kept)


def test_what_is_spared_frees_nothing() -> None:
    kept = [item("a", "1", 1), item("a", "2", 2), item("b", "1", 3)]
    assert surplus(kept, 20, spared={kept[0].path}) == [kept[1]]
    assert surplus(kept, 20, tenants_max=1, spared={kept[0].path}) == [kept[1]]


def test_a_small_disk_has_a_smaller_limit() -> None:
    assert limit_bytes(1 << 40) == HOST_BYTES_MAX
    assert limit_bytes(8 << 30) == 2 << 30


def test_tenants_above_the_limit_are_evicted_entirely() -> None:
    kept = [item(f"t{n}", name, n) for n in range(6) for name in "ab"]
    gone = surplus(kept, 1000, tenants_max=4)
    assert {one.tenant.name for one in gone} == {"t0", "t1"}
    assert len(gone) == 4


@given(
    st.lists(
        st.builds(
            item,
            st.sampled_from("abcdef"),
            st.text("xyz", min_size=1, max_size=4),
            st.integers(0, 99),
            st.integers(0, 50),
        ),
        unique_by=lambda one: one.path,
    ),
    st.integers(0, 200),
    st.integers(1, 6),
)
def test_the_remaining_items_are_within_the_limits(
    kept: list[StoredItem], most: int, tenants: int
) -> None:
    gone = surplus(kept, most, tenants)
    left = [one for one in kept if one not in gone]
    assert sum(one.bytes for one in left) <= most
    assert len({one.tenant for one in left}) <= tenants
    of_left = {one.tenant for one in left}
    in_turn = [one for one in gone if one.tenant in of_left]
    assert all(one.used_ns <= other.used_ns for one in in_turn for other in left)


def test_six_invented_tenants_leave_no_more_than_the_limit(tmp_path: Path) -> None:
    for number in range(6):
        for name in ("content", "compiled/kernel.so"):
            path = tmp_path / f"tenant{number}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes(1000))
            os.utime(path, (number, number))
        os.utime(tmp_path / f"tenant{number}" / "compiled", (number, number))
    evict(tmp_path, bytes_max=20_000, tenants_max=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tenant4", "tenant5"]
    evict(tmp_path, bytes_max=1000)
    left = [str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*") if one.is_file()]
    assert left == ["tenant5/content"]
    evict(tmp_path, bytes_max=0)
    assert list(tmp_path.iterdir()) == []
    evict(tmp_path / "nothing")
