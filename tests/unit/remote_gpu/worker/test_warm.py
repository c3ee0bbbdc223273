"""What is loaded once, before the fork or by the first lane that needs it."""

from __future__ import annotations

import threading

from remote_gpu.worker.operation import Warm


def test_warm_loads_once() -> None:
    warm = Warm()
    loads: list[int] = []

    def load() -> str:
        loads.append(1)
        return "value"

    for _ in range(3):
        assert warm.get("key", load) == "value"
    assert (loads, warm.keys(), warm.find("other")) == ([1], ("key",), None)


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
