"""The time that a worker spends loading, and what it keeps loaded for the next lease."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.wire.graphs import content_id
from remote_gpu.worker.loading import LoadingTime
from remote_gpu.worker.memory.memory import Area
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Warm
from remote_gpu.worker.store.contents import Contents
from remote_gpu.worker.store.resources import Resources

DATA = memoryview(b"0123456789")
NAME = content_id(DATA)


def test_nested_and_concurrent_loads_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr("remote_gpu.worker.loading.time.monotonic", lambda: now_s)
    seen: list[float] = []
    sizes: list[int] = []

    def report(seconds: float, size: int) -> None:
        seen.append(seconds)
        sizes.append(size)

    loading = LoadingTime(report)
    with loading:
        now_s = 1.0
        loading.count(5)
        with loading:
            loading.count(2)
            now_s = 3.0
        assert seen == []

        def other() -> None:
            with loading:
                pass

        thread = threading.Thread(target=other)
        thread.start()
        thread.join(60)
        now_s = 4.0
    assert seen == [4.0]
    with loading:
        now_s = 6.0
    assert seen == [4.0, 6.0]
    loading.restart()
    with loading:
        now_s = 7.0
    assert seen[-1] == 1.0
    assert sizes == [7, 7, 0]


def test_a_load_that_fails_leaves_nothing_loaded() -> None:
    """Its worker would be kept as a warm one, with nothing to keep."""
    seen: list[float] = []
    loading = LoadingTime(lambda seconds, _: seen.append(seconds))

    def fail(*, after_a_part: bool) -> None:
        with loading:
            if after_a_part:
                with loading:
                    pass  # it stays loaded
            raise OpFailed(OpCode.ENOMEM, "no room")

    with pytest.raises(OpFailed):
        fail(after_a_part=False)
    assert seen == []
    with pytest.raises(OpFailed):
        fail(after_a_part=True)
    assert len(seen) == 1


def loaded(resources: Resources, quota: Quota, loads: list[int], kind: str = "model") -> int:
    """Register, load and release in a session of its own."""
    session = resources.new_session()
    resources.register(session, kind, NAME, DATA)

    def load(data: memoryview) -> list[int]:
        loads.append(len(data))
        return loads

    assert resources.loaded(NAME, quota, load) is loads
    resources.end_session(session)
    return quota.used_bytes


def test_what_is_loaded_is_kept_for_the_next_session_and_freed_when_memory_is_needed() -> None:
    resources, quota, loads = Resources(), Quota(15), list[int]()
    resources.keeps_loaded = True
    quota.add_model_cache(resources.evict)
    for _ in range(3):
        assert loaded(resources, quota, loads) == len(DATA)
    assert loads == [len(DATA)]
    assert resources.unused() == (NAME,)
    with pytest.raises(OpFailed, match="ENOENT"):
        resources.data(NAME)  # without a session it is not found
    quota.reserve(5)
    assert resources.unused() == (NAME,)
    quota.reserve(5)
    assert (resources.unused(), quota.used_bytes) == ((), 10)
    assert not resources.evict()
    quota.free(10)
    loaded(resources, quota, loads)
    assert len(loads) == 2


def test_a_registered_resource_is_not_freed_for_memory() -> None:
    resources, quota, loads = Resources(), Quota(15), list[int]()
    resources.keeps_loaded = True
    quota.add_model_cache(resources.evict)
    loaded(resources, quota, loads)
    session = resources.new_session()
    resources.register(session, "model", NAME, DATA)
    with pytest.raises(OpFailed, match=OpCode.ENOMEM):
        quota.reserve(6)
    assert resources.data(NAME) == DATA
    assert resources.unused() == ()


def test_a_kept_resource_of_another_type_is_not_used() -> None:
    resources, quota, loads = Resources(), Quota(100), list[int]()
    resources.keeps_loaded = True
    loaded(resources, quota, loads)
    loaded(resources, quota, loads, kind="program")
    assert len(loads) == 2
    assert resources.evict()
    assert quota.used_bytes == 0


def test_a_resource_that_is_being_used_is_not_freed() -> None:
    resources, quota, loads = Resources(), Quota(100), list[int]()
    resources.keeps_loaded = True
    loaded(resources, quota, loads)
    (kept,) = resources._unused.values()
    with kept.lock:
        assert not resources.evict()
    assert quota.used_bytes == len(DATA)


def test_caches_of_data_go_before_models_and_at_the_end_of_a_lease() -> None:
    quota, order = Quota(10), list[str]()
    quota.add_model_cache(lambda: order.append("models"))
    quota.add_cache(lambda: order.append("data"))
    quota.evict_caches()
    assert order == ["data"]
    with pytest.raises(OpFailed, match="ENOMEM"):
        quota.reserve(11)
    assert order == ["data", "data", "models"]
    area = Area(quota)
    area.take(5)
    area.done()
    quota.evict_caches()
    assert quota.used_bytes == 0


def test_contents_of_a_lease_are_forgotten(tmp_path: Path) -> None:
    contents = Contents(tmp_path)
    for text in (b"one", b"two"):
        contents.put(content_id(memoryview(text)), memoryview(text))
        assert contents.find(content_id(memoryview(text))) is not None
    keep = content_id(memoryview(b"one"))
    contents.keep_only([keep, "sha256:unknown"])
    for path in tmp_path.iterdir():
        path.unlink()
    assert contents.find(keep) is not None
    assert contents.find(content_id(memoryview(b"two"))) is None


def test_warm_loads_once_for_concurrent_lanes() -> None:
    warm, loads, began, go = Warm(), [], threading.Event(), threading.Event()

    def load() -> str:
        loads.append(warm.get("another", lambda: "part"))
        began.set()
        assert go.wait(60)
        return "value"

    threads = [threading.Thread(target=warm.get, args=("key", load)) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert began.wait(60)
    go.set()
    for thread in threads:
        thread.join(60)
    assert (loads, warm.keys()) == (["part"], ("another", "key"))
    assert warm.find("other") is None
