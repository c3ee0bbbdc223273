"""`ssgm-monitor` against a real ssgmd: staleness, an edited inventory; waiting over HTTP."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from collections.abc import Callable
from typing import Any

K80 = "kind: cuda, model: Tesla K80, memory_mib: 12GiB"


def hosts(programs: Any, address: str) -> dict[str, Any]:
    done = programs.ssgm("hosts", "--json", "--scheduler", address)
    assert done.returncode == 0, done.stderr
    return {host["host"]: host for host in json.loads(done.stdout)["hosts"]}


def wait_for(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_a_silent_monitor_goes_stale_and_comes_back(programs: Any) -> None:
    address = programs.ssgmd().wait_ready()["socket"]
    inventory = programs.inventory("k80.yaml", K80)
    monitor = programs.monitor(address, "k80", inventory, "--metrics", "127.0.0.1:0")
    endpoint = f"http://{monitor.wait_ready()['metrics']}/metrics"
    with urllib.request.urlopen(endpoint, timeout=10) as answer:
        assert b'\nssgm_monitor_registered{host="k80"} 1\n' in answer.read()
    assert hosts(programs, address)["k80"]["state"] == "UP"
    monitor.process.send_signal(signal.SIGSTOP)
    wait_for(lambda: hosts(programs, address)["k80"]["state"] == "LOST")
    refused = programs.ssgm("alloc", "--advisory", "--json", "--scheduler", address)
    assert refused.returncode == 6
    assert json.loads(refused.stdout)["outcome"] == "busy", "known, hence not impossible"
    monitor.process.send_signal(signal.SIGCONT)
    wait_for(lambda: hosts(programs, address)["k80"]["state"] == "UP")
    assert monitor.terminate() == 0


def test_an_edited_inventory_is_reported_in_real_time(programs: Any) -> None:
    address = programs.ssgmd().wait_ready()["socket"]
    monitor = programs.monitor(address, "k80", programs.inventory("k80.yaml", K80))
    monitor.wait_ready()
    programs.inventory("k80.yaml", K80, "kind: cuda, model: V100, memory_mib: 32GiB")
    wait_for(lambda: len(hosts(programs, address)["k80"]["devices"]) == 2)
    (programs.folder / "k80.yaml").write_text("devices: [oops]")

    def all_bad() -> bool:
        devices = hosts(programs, address)["k80"]["devices"]
        return not any(view["device"]["health"] == "OK" for view in devices)

    wait_for(all_bad)
    detail = hosts(programs, address)["k80"]["devices"][0]["device"]["detail"]
    assert "expected an object" in detail
    programs.inventory("k80.yaml", K80, "kind: cuda, model: V100, memory_mib: 32GiB")
    wait_for(lambda: not all_bad())


def test_a_monitor_needs_exactly_one_source(programs: Any) -> None:
    monitor = programs.start(
        "gpu_scheduler.monitor", "--scheduler", "127.0.0.1:1", "--host-id", "h"
    )
    assert monitor.process.wait(timeout=20) == 2
    assert "exactly one of --inventory" in monitor.log.read_text()


def test_a_waiting_request_over_http_is_asked_again_until_it_is_granted(programs: Any) -> None:
    ready = programs.ssgmd().wait_ready()
    programs.monitor(ready["socket"], "k80", programs.inventory("k.yaml", K80)).wait_ready()

    def ask(method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://{ready['http']}/v1/{path}", data=data, method=method
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())

    whole = {"sharing": "exclusive", "advisory": True}
    held = ask("POST", "reserve", {"attempt": "a", "request": whole})[1]
    wanted = {"attempt": "b", "request": whole, "wait": True}
    status, value = ask("POST", "reserve", wanted)
    assert (status, value["outcome"]) == (202, "waiting")
    assert value["explanation"]["position"] == 1
    ask("DELETE", f"leases/{held['granted']['lease']['id']}")
    status, value = ask("POST", "reserve", wanted)
    assert (status, value["outcome"]) == (200, "granted")
