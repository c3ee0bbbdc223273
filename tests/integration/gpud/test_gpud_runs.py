"""Functions that run on the host of their device, with a real gpud and an embedded cloud."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract.envelope import Job
from contract.result import Result
from contract.states import JobState
from gpu_scheduler.model import EndReason
from gpu_scheduler.protocol.host import Install
from gpu_scheduler.warm import tenant_folder
from remote_gpu.client import Refused
from remote_gpu.isolation import probe
from remote_gpu.isolation.policy import LANDLOCK_PORTS
from remote_gpu.wire.errors import Refusal
from remote_gpu.wire.proof import lane_key

from .conftest import Gpud, lives, running_gpud, until
from .run_bench import Bench, bench_in, send_order
from .test_gpud_isolation import ground, ordinary_users_have_namespaces, running

HOSTILE = Path(__file__).with_name("hostile")
COPY = '#!/bin/sh\ncp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/out.txt"; echo said\n'
FOREVER = "#!/bin/sh\necho began\nsleep {mark}\n"
#: A daemon that leaves its session and its parents, and a step that waits for it.
DAEMON = '#!/bin/sh\n(setsid sh -c "sleep {mark}" >/dev/null 2>&1 </dev/null &)\nsleep {mark}\n'


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    facts = probe.ask([])
    if facts.landlock < LANDLOCK_PORTS or not facts.seccomp or not facts.pid_namespace:
        pytest.skip(f"NOT TESTED: this machine isolates too little: {dict(facts.why)}")
    with bench_in(tmp_path_factory.mktemp("cloud")) as made:
        yield made


@pytest.fixture(scope="module")
def gpud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpud]:
    with running_gpud(tmp_path_factory.mktemp("gpud")) as made:
        yield made


def new_mark() -> str:
    return str(10**9 + secrets.randbelow(10**9))


def closed(gpud: Gpud, install: Install) -> dict[str, Any]:
    """What the host reported of the end of a lease, once it has."""

    def found() -> list[dict[str, Any]]:
        messages = [fields for op, fields in gpud.scheduler.messages if op == "session"]
        return [
            one for one in messages if (one["lease"], one["state"]) == (install.lease, "closed")
        ]

    until(found)
    return found()[0]


def finished(gpud: Gpud, bench: Bench, install: Install, job: Job) -> Result:
    """The result, once the lease is over."""
    end = closed(gpud, install)
    result = bench.result(job)
    assert result is not None, (end, bench.report(job))
    return result


def nothing_left(gpud: Gpud) -> None:
    until(lambda: not list((gpud.state / "scratch").iterdir()))


def test_a_function_runs_on_the_host_to_its_result(gpud: Gpud, bench: Bench) -> None:
    assert "function-runner" in gpud.hello["programs"]
    install, job = bench.run(gpud, COPY)
    result = finished(gpud, bench, install, job)
    assert (result.state, result.log_tail) == (JobState.SUCCEEDED, "said\n")
    assert [file["key"] for file in result.files] == ["res/out.txt"]
    assert closed(gpud, install)["reason"] == EndReason.DONE
    nothing_left(gpud)
    until(lambda: any("REPORT" in line for line in bench.log()))
    lines = bench.log()
    assert "said" in lines
    assert any(f"{job.job_id}, attempt 1" in line for line in lines)


def test_a_package_is_unpacked_once_for_a_tenant(gpud: Gpud, bench: Bench) -> None:
    folder = gpud.state / "packages" / tenant_folder("t")
    install, job = bench.run(gpud, COPY)
    finished(gpud, bench, install, job)
    (package,) = [one for one in folder.iterdir() if (one / "script/run.sh").read_text() == COPY]
    made_ns = (package / "script/run.sh").stat().st_mtime_ns
    install, job = bench.run(gpud, COPY)
    finished(gpud, bench, install, job)
    assert (package / "script/run.sh").stat().st_mtime_ns == made_ns


def test_a_repeated_order_starts_nothing_and_renews_the_credentials(
    gpud: Gpud, bench: Bench
) -> None:
    mark = new_mark()
    install = gpud.install()
    job, event = bench.stage(gpud, install)
    order = bench.order(job, event, bench.package(FOREVER.format(mark=mark)))
    assert send_order(gpud, install, order)
    until(lambda: running(mark))
    (scratch,) = (gpud.state / "scratch").iterdir()
    credentials = scratch / "private" / "credentials.json"
    before = json.loads(credentials.read_text())
    aws = {**order.aws, "AWS_ACCESS_KEY_ID": "AKIANEWER", "AWS_SESSION_TOKEN": "token"}
    renewed = replace(order, aws=aws, credentials_end_s=time.time() + 3600)
    assert not send_order(gpud, install, renewed)
    after = json.loads(credentials.read_text())
    assert before["AccessKeyId"] == "AKIAOFTHEFUNCTION"
    assert (after["AccessKeyId"], after["SessionToken"]) == ("AKIANEWER", "token")
    assert "Expiration" in after
    assert len(running(mark)) == 1
    gpud.scheduler.end(install)
    until(lambda: not running(mark))
    nothing_left(gpud)


def test_a_host_that_stops_sends_the_last_lines_of_its_runs(bench: Bench, tmp_path: Path) -> None:
    mark, group = new_mark(), "/of-a-host-that-stops"
    with running_gpud(tmp_path) as gpud:
        bench.run(gpud, FOREVER.format(mark=mark), log_group=group)
        until(lambda: running(mark))
    events = bench.logs.filter_log_events(logGroupName=group)["events"]
    assert events[0]["message"].startswith("START RequestId: ")


def test_a_killed_runner_ends_its_lease_with_the_reason(gpud: Gpud, bench: Bench) -> None:
    mark = new_mark()
    install, _ = bench.run(gpud, FOREVER.format(mark=mark))
    until(lambda: running(mark))
    (sleeping,) = running(mark)
    os.kill(runner_above(gpud, sleeping), 9)
    end = closed(gpud, install)
    assert end["reason"] == EndReason.SESSION_LOST
    assert "its run on the host ended (exit status 137)" in end["detail"]
    until(lambda: not running(mark))
    nothing_left(gpud)


def runner_above(gpud: Gpud, pid: int) -> int:
    """The first process of the namespace of a user's process."""
    parents = [pid]
    while (parent := parent_of(parents[-1])) != gpud.process.pid:
        parents.append(parent)
    return parents[-2]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_run_that_never_opens_its_session_ends_the_lease_at_once(
    gpud: Gpud, bench: Bench
) -> None:
    install = gpud.install()
    job, event = bench.stage(gpud, install)
    order = bench.order(job, event, bench.package(COPY))
    gone = replace(order.package, key="packages/gone.zip", sha256="0" * 64)
    assert send_order(gpud, install, replace(order, package=gone))
    end = closed(gpud, install)
    assert end["reason"] == EndReason.NOT_STARTED
    assert "exit status 3" in end["detail"]
    assert "s3://state/packages/gone.zip cannot be read" in end["detail"]
    nothing_left(gpud)


def test_another_content_than_that_of_the_order_is_not_run(gpud: Gpud, bench: Bench) -> None:
    install = gpud.install()
    job, event = bench.stage(gpud, install)
    order = bench.order(job, event, bench.package(COPY))
    assert send_order(
        gpud, install, replace(order, package=replace(order.package, sha256="f" * 64))
    )
    assert "another content than its order" in closed(gpud, install)["detail"]


def test_a_package_of_another_account_is_not_fetched(gpud: Gpud, bench: Bench) -> None:
    install = gpud.install()
    job, event = bench.stage(gpud, install)
    order = bench.order(job, event, bench.package("#!/bin/sh\n# of another account\n"))
    variables = {**order.variables, "ORCHGPU_ACCOUNT": "999999999999"}
    assert send_order(gpud, install, replace(order, variables=variables))
    detail = closed(gpud, install)["detail"]
    assert "cannot be read" in detail
    assert "AccessDenied" in detail or "403" in detail


def test_the_end_of_a_lease_ends_all_that_the_user_started(gpud: Gpud, bench: Bench) -> None:
    mark = new_mark()
    install, _ = bench.run(gpud, DAEMON.format(mark=mark))
    until(lambda: len(running(mark)) >= 2)
    gpud.scheduler.end(install)
    until(lambda: gpud.scheduler.is_cut(install.lease))
    assert running(mark) == []
    nothing_left(gpud)


def test_a_run_that_exceeds_its_time_is_killed(gpud: Gpud, bench: Bench) -> None:
    """Here before it opens its session: a runner ends its script before its own time is over."""
    install, _ = bench.run(gpud, COPY, timeout_s=0.2)
    end = closed(gpud, install)
    assert end["reason"] == EndReason.NOT_STARTED
    assert "killed after 0.2 s" in end["detail"]
    nothing_left(gpud)


def test_a_session_may_not_order_a_run(gpud: Gpud, bench: Bench) -> None:
    """The user's code has the key of its session, never the secret of the lease."""
    install = gpud.install()
    job, event = bench.stage(gpud, install)
    order = bench.order(job, event, bench.package(COPY))
    session = "ab" * 16
    key = lane_key(bytes.fromhex(install.secret), install.lease, install.fence, "gpu-a", session)
    with pytest.raises(Refused) as refused:
        send_order(gpud, replace_secret(install, key.hex()), order, session)
    assert refused.value.code == Refusal.DENIED
    gpud.scheduler.end(install)


def replace_secret(install: Install, secret: str) -> Install:
    from corekit.values import replace as with_fields

    return with_fields(install, secret=secret)


def test_endpoints_at_ports_of_the_metadata_and_of_the_scheduler_are_refused(
    gpud: Gpud, bench: Bench
) -> None:
    install = gpud.install()
    job, event = bench.stage(gpud, install)
    order = bench.order(job, event, bench.package(COPY))
    for url in ("http://169.254.169.254", f"http://{gpud.scheduler.address}"):
        with pytest.raises(Refused, match="no run may connect to port"):
            send_order(gpud, install, replace(order, aws={"AWS_ENDPOINT_URL": url}))
    gpud.scheduler.end(install)


#: What the user's code tries, beside a shell and programs, which it may start.
WHAT = [
    *(
        (name, "runner")
        for name in ("memory_of", "trace", "read_across", "signal_to", "limit", "taken_descriptor")
    ),
    *(
        ("read", target)
        for target in ("runner_environ", "shadow", "credentials", "config", "journal", "other")
    ),
    *(("listed", target) for target in ("private", "packages", "scratch", "other_package")),
    *(("plant", target) for target in ("package", "private", "packages", "system", "python")),
    ("connect", "scheduler"),
    ("connect", "cloud"),
    ("connect_to", "metadata"),
    ("abstract", "abstract"),
    ("local", "gateway_socket"),
    ("listen", ""),
    ("listen_unbound", ""),
    ("datagrams", ""),
    ("udp", "scheduler"),
    ("multipath", ""),
    ("fast_open", "scheduler"),
    ("user_namespace", ""),
    ("mount", ""),
    ("become_root", ""),
    ("shared_memory", ""),
    *(("kernel_call", name) for name in ("io_uring", "bpf", "userfaultfd", "perf", "keyctl")),
]
CONFINED = [*WHAT, ("connect", "gateway")]
#: Where they succeed.
HARMLESS = (
    "read",
    "listed",
    "connect",
    "udp",
    "multipath",
    "listen",
    "listen_unbound",
    "datagrams",
)
CALLS = {"io_uring": 425, "bpf": 321, "userfaultfd": 323, "perf": 298, "keyctl": 250}


def attack_script(gpud: Gpud, bench: Bench, other: Path, what: list[tuple[str, str]]) -> str:
    on = {
        "shadow": "/etc/shadow",
        "journal": str(gpud.state / "leases.jsonl"),
        "other": str(other / "script/run.sh"),
        "other_package": str(other),
        "packages": str(gpud.state / "packages"),
        "scratch": str(gpud.state / "scratch"),
        "scheduler": gpud.scheduler.listener.getsockname()[1],
        "gateway": int(gpud.gateway.rpartition(":")[2]),
        "cloud": int(bench.endpoint.rpartition(":")[2]),
        "metadata": ["169.254.169.254", 80],
        "abstract": "nothing",
        "gateway_socket": str(gpud.state / "gateway.sock"),
        "system": "/usr/lib",
        "python": os.path.dirname(os.__file__),
        **CALLS,
    }
    asked = json.dumps({"what": what, "on": on})
    files = "".join(
        f"cat > {name} <<'END'\n{(HOSTILE / name).read_text()}\nEND\n"
        for name in ("attempts.py", "of_a_run.py")
    )
    return f"#!/bin/sh\n{files}python3 of_a_run.py <<'END'\n{asked}\nEND\n"


def attacked(
    gpud: Gpud, bench: Bench, what: list[tuple[str, str]], **fields: Any
) -> dict[str, list[str | None]]:
    install = gpud.install(tenant="victim")
    job, event = bench.stage(gpud, install)
    assert send_order(gpud, install, bench.order(job, event, bench.package(COPY)))
    finished(gpud, bench, install, job)
    (other,) = (gpud.state / "packages" / tenant_folder("victim")).iterdir()
    install, job = bench.run(gpud, attack_script(gpud, bench, other, what), **fields)
    result = finished(gpud, bench, install, job)
    assert gpud.process.poll() is None
    found: dict[str, list[str | None]] = json.loads(result.log_tail)
    return found


def taken(found: dict[str, list[str | None]]) -> set[str]:
    return {name for name, (got, _) in found.items() if got is not None}


def test_the_users_code_reaches_nothing_but_its_device(gpud: Gpud, bench: Bench) -> None:
    assert taken(attacked(gpud, bench, CONFINED)) == {"connect gateway"}


def test_the_users_code_with_the_network_reaches_no_more_of_the_host(
    gpud: Gpud, bench: Bench
) -> None:
    network = {"connect cloud", "listen ", "listen_unbound ", "udp scheduler"}
    assert taken(attacked(gpud, bench, CONFINED, network=True)) == {"connect gateway", *network}


def test_the_users_code_reaches_no_more_where_gpud_is_an_ordinary_user(bench: Bench) -> None:
    if not ordinary_users_have_namespaces():
        pytest.skip("NOT TESTED: ordinary users may have no user namespaces on this machine")
    with ground(ordinary=True) as found:
        assert taken(attacked(found.gpud, bench, CONFINED)) == {"connect gateway"}


def test_a_host_without_isolation_runs_functions_and_holds_nothing_back(
    bench: Bench, tmp_path: Path
) -> None:
    """What makes the attempts above proof: they succeed here."""
    what = [one for one in WHAT if one[0] in HARMLESS]
    with running_gpud(tmp_path, "--isolation", "none") as gpud:
        found = taken(attacked(gpud, bench, what))
    assert {"connect scheduler", "connect cloud", "read credentials", "read journal"} <= found


def test_nothing_outlives_a_gpud_that_is_killed(bench: Bench, tmp_path: Path) -> None:
    mark = new_mark()
    with running_gpud(tmp_path) as gpud:
        bench.run(gpud, DAEMON.format(mark=mark))
        until(lambda: len(running(mark)) >= 2)
        below = gpud.workers()
        gpud.kill()
        until(lambda: not running(mark))
        until(lambda: not any(map(lives, below)))


def test_an_operator_may_disable_runs(bench: Bench, tmp_path: Path) -> None:
    with running_gpud(tmp_path, "--no-run") as gpud:
        assert "function-runner" not in gpud.hello.get("programs", {})
        install = gpud.install()
        job, event = bench.stage(gpud, install)
        with pytest.raises(Refused, match=r"runs no functions.*--no-run"):
            send_order(gpud, install, bench.order(job, event, bench.package(COPY)))
