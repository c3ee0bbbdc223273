"""Code that has taken over a worker meets nothing but its own lease, as root and as any user.

What is tried runs in the worker's process, after it was isolated, with all that native code can
do: more than any kernel. The same attempts without isolation succeed, which is what makes them
proof.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.warm import tenant_folder
from remote_gpu.client import Graph, OpFailed, Refused, Session, connect
from remote_gpu.isolation import probe, system
from tests.unit.operations.test_hostile_models import reading

from .conftest import Gpud, lives, until

HOSTILE = Path(__file__).with_name("hostile")
ROOT = Path(__file__).parents[3]
ORDINARY_USER = 54_321
KEY = "gpu-a." + "s3cret" * 7 + "X"
ATTEMPTS = f"attempts={sys.executable} -I {HOSTILE / 'attempts.py'}"

FILES = ("key_file", "journal", "ssh_key", "other_content")
OF_PROCESSES = ("memory_of", "trace", "read_across", "signal_to", "limit", "taken_descriptor")
WHAT: list[tuple[str, str]] = [
    *((name, target) for name in OF_PROCESSES for target in ("gpud", "neighbour")),
    *(("read", target) for target in ("gpud_environ", "gpud_cmdline", "neighbour_environ", *FILES)),
    *(
        (name, target)
        for name in (
            "write",
            "truncate",
            "link",
            "open_to_all",
            "open_by_folder",
            "mark",
            "date",
            "watch",
        )
        for target in FILES
    ),
    ("open_to_all", "other_folder"),
    ("watch", "kept"),
    ("linger", ""),
    ("read_the_log", ""),
    *(
        (name, target)
        for name in ("plant", "listed", "remove")
        for target in ("other_folder", "other_compiled", "other_scratch", "home")
    ),
    ("listed", "kept"),
    ("connect", "scheduler"),
    ("reconnect", "scheduler"),
    ("abstract", "abstract"),
    ("local", "gateway_socket"),
    ("listen", ""),
    ("datagrams", ""),
    ("shell", ""),
    ("become_shell", ""),
    ("user_namespace", ""),
    ("mount", ""),
    ("become_root", ""),
    ("shared_memory", ""),
    *(("kernel_call", name) for name in ("io_uring", "bpf", "userfaultfd", "perf", "keyctl")),
    ("plant", "system"),
    ("plant", "python"),
    ("plant", "tmp"),
]
CALLS = {"io_uring": 425, "bpf": 321, "userfaultfd": 323, "perf": 298, "keyctl": 250}


@dataclass(kw_only=True)
class Ground:
    """One gpud under attack, and what lies around it."""

    gpud: Gpud
    home: Path
    abstract: str
    who: str = ""

    @property
    def what(self) -> list[tuple[str, str]]:
        """What is tried: user 0 without a right stays what it is, where no namespace hides /proc
        a program sees command lines."""
        if self.who != WHO[1]:
            return WHAT
        return [one for one in WHAT if one[0] != "become_root" and one[1] != "gpud_cmdline"]

    def lease(self, stack: contextlib.ExitStack, tenant: str) -> tuple[Session, Any, int]:
        """A session with a lane, and its worker's number."""
        before = set(self.gpud.workers())
        session = stack.enter_context(self.gpud.open(self.gpud.install(64, tenant=tenant)))
        device = stack.enter_context(connect(session.environment()))
        device.op("noop")
        found = [pid for pid in bound_workers(self.gpud) if pid]
        assert found, before
        return session, device, found[-1]

    def targets(self, neighbour: int) -> dict[str, Any]:
        kept = self.gpud.state / "kept"
        other = kept / tenant_folder("victim")
        gpud = self.gpud.process.pid
        return {
            "gpud": gpud,
            "neighbour": neighbour,
            "gpud_environ": f"/proc/{gpud}/environ",
            "gpud_cmdline": f"/proc/{gpud}/cmdline",
            "neighbour_environ": f"/proc/{neighbour}/environ",
            "key_file": str(self.home / "key"),
            "journal": str(self.gpud.state / "leases.jsonl"),
            "ssh_key": str(self.home / ".ssh" / "id"),
            "other_content": str(next(one for one in other.iterdir() if one.is_file())),
            "other_folder": str(other),
            "other_compiled": str(other / "compiled"),
            "other_scratch": str(self.gpud.state / "scratch"),
            "home": str(self.home),
            "kept": str(kept),
            "scheduler": self.gpud.scheduler.listener.getsockname()[1],
            "abstract": self.abstract,
            "gateway_socket": str(self.gpud.state / "gateway.sock"),
            "system": "/usr/lib",
            "python": sys.prefix,
            "tmp": "/tmp",
            **CALLS,
        }


def bound_workers(gpud: Gpud) -> list[int]:
    """Processes with a lane: their main thread has others beside it. The newest last."""
    found = []
    for pid in gpud.workers():
        with contextlib.suppress(OSError):
            if len(list(Path(f"/proc/{pid}/task").iterdir())) > 1:
                start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
                found.append((int(start), pid))
    return [pid for _, pid in sorted(found)]


@contextlib.contextmanager
def ground(
    ordinary: bool, *options: str, operations: tuple[str, ...] = (), bare: str = ""
) -> Iterator[Ground]:
    folder = Path(tempfile.mkdtemp(prefix="isolation-"))
    home, abstract = folder / "home", f"isolation-{secrets.token_hex(8)}"
    (home / ".ssh").mkdir(parents=True)
    for secret in (home / "key", home / ".ssh" / "id"):
        secret.write_text(KEY)
        secret.chmod(0o600)
    prefix: tuple[str, ...] = ()
    if os.geteuid() == 0 and (ordinary or bare):
        user = ORDINARY_USER if ordinary else 0
        for path in (folder, home, home / ".ssh", home / "key", home / ".ssh" / "id"):
            os.chown(path, user, user)
        script = str(HOSTILE / "as_user.py")
        prefix = (sys.executable, script, str(user), str(ROOT), str(folder), "--")
    else:
        folder.chmod(0o755)
    variables = {
        "PYTHONPATH": f"{HOSTILE}{os.pathsep}{ROOT}",
        "ORCHGPU_SCHEDULER_KEY": KEY,
        "HOME": str(home),
        "BARE": bare,
    }
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(b"\0" + abstract.encode())
        listener.listen()
        gpud = Gpud(
            folder,
            {},
            ("noop", "onnx", "hostile", *operations),
            options=options,
            prefix=prefix,
            variables=variables,
        )
        stack.callback(gpud.close)
        yield Ground(gpud=gpud, home=home, abstract=abstract)


WHO = ("root", "root without namespaces", "an ordinary user")


@functools.cache
def ordinary_users_have_namespaces() -> bool:
    """Containers and some distributions forbid them; gpud then refuses what it cannot hold."""
    user = ORDINARY_USER if os.geteuid() == 0 else None
    command = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "true")
    return subprocess.run(command, user=user, check=False, timeout=60).returncode == 0


def lacks(who: str) -> str:
    """What the kernel is to lack, as `as_user.py` takes it."""
    if who == "an ordinary user":
        if not ordinary_users_have_namespaces():
            pytest.skip("NOT TESTED: ordinary users may have no user namespaces on this machine")
        return ""
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: a gpud that runs as root; run the tests as root")
    if who == "root":
        return ""
    if system.architecture() != "x86_64":
        pytest.skip("NOT TESTED: a kernel without namespaces; needs x86-64, to play one")
    return "unshare"


@pytest.fixture(scope="module", params=WHO)
def attacked(request: pytest.FixtureRequest) -> Iterator[Ground]:
    facts = probe.ask([])
    if not facts.seccomp or not facts.landlock:
        pytest.skip(f"NOT TESTED: this machine isolates too little: {dict(facts.why)}")
    with ground(
        request.param == WHO[-1],
        "--isolation",
        "require",
        "--program",
        ATTEMPTS,
        operations=("exec",),
        bare=lacks(request.param),
    ) as found:
        found.who = request.param
        yield found


@pytest.fixture(scope="module", params=WHO)
def strict(request: pytest.FixtureRequest) -> Iterator[Ground]:
    """A gpud without programs: its workers start nothing but a compiler's linker."""
    less = lacks(request.param)
    with ground(request.param == WHO[-1], "--isolation", "require", bare=less) as found:
        found.who = request.param
        yield found


def keep_something(one: Ground) -> None:
    """What the victim has sent lies on the host."""
    with contextlib.ExitStack() as stack:
        _, device, _ = one.lease(stack, "victim")
        with contextlib.suppress(OpFailed):  # no such model: its bytes are kept before it is read
            device.op("resource.register", b"the victim's own", session="s", type="data")
    folder = one.gpud.state / "kept" / tenant_folder("victim")
    owner = folder.stat()
    content = folder / ("0" * 64)
    content.write_bytes(b"the victim's own")
    content.chmod(0o660)
    os.chown(content, owner.st_uid, owner.st_gid)


def attack(one: Ground, what: list[tuple[str, str]], **more: Any) -> dict[str, list[str | None]]:
    keep_something(one)
    with contextlib.ExitStack() as stack:
        _, neighbour, worker = one.lease(stack, "victim")
        _, device, _ = one.lease(stack, "attacker")
        found = device.op("hostile", what=what, on=one.targets(worker) | more).values["found"]
        assert neighbour.op("noop", b"goes on").buffers[0] == b"goes on"
        assert one.gpud.process.poll() is None
    return dict(found)


def taken(found: dict[str, list[str | None]]) -> dict[str, str]:
    return {name: got for name, (got, _) in found.items() if got is not None}


def test_a_worker_reaches_nothing_outside_its_lease(strict: Ground) -> None:
    found = attack(strict, [*strict.what, ("fork", ""), ("executable_memory", "")])
    assert found.pop("executable_memory ") == ["42", ""]
    assert taken(found) == {}


def test_a_worker_with_programs_reaches_nothing_outside_its_lease(attacked: Ground) -> None:
    """A worker may start programs there, the shell among them: all else is held as ever."""
    what = [one for one in attacked.what if one[0] not in ("shell", "become_shell")]
    assert taken(attack(attacked, what)) == {}


def test_a_hostile_program_reaches_nothing_outside_its_lease(attacked: Ground) -> None:
    keep_something(attacked)
    own = ("shell", "become_shell", "read_the_log")  # its standard error is a pipe of its own
    what = [one for one in attacked.what if one[0] not in own]
    with contextlib.ExitStack() as stack:
        _, neighbour, worker = attacked.lease(stack, "victim")
        _, device, _ = attacked.lease(stack, "attacker")
        asked = json.dumps({"what": what, "on": attacked.targets(worker)}).encode()
        ran = device.op("exec", asked, program="attempts")
        assert ran.values["status"] == 0, bytes(ran.buffers[1])
        assert taken(json.loads(bytes(ran.buffers[0]))) == {}
        assert neighbour.op("noop", b"goes on").buffers[0] == b"goes on"


def test_processes_of_a_worker_end_with_its_lease(strict: Ground) -> None:
    check_nothing_outlives(strict)


def test_processes_of_a_program_end_with_its_lease(attacked: Ground) -> None:
    check_nothing_outlives(attacked)


def check_nothing_outlives(one: Ground) -> None:
    mark = str(10**9 + secrets.randbelow(10**9))
    install = one.gpud.install(64, tenant="attacker")
    with one.gpud.open(install) as session, connect(session.environment()) as device:
        found = device.op("hostile", what=[("leave_a_process", "mark")], on={"mark": mark})
        got, why = found.values["found"]["leave_a_process mark"]
        if got is not None:  # a linker may be started: then nothing else tells it from this
            until(lambda: running(mark))
        else:
            assert "denied" in why or "not permitted" in why
    one.gpud.scheduler.end(install)
    until(lambda: one.gpud.scheduler.is_cut(install.lease))
    assert running(mark) == []


def running(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark.encode() in entry.read_bytes() and lives(int(entry.parent.name)):
                found.append(int(entry.parent.name))
    return found


def test_a_fault_of_its_memory_ends_its_worker_alone(strict: Ground) -> None:
    with contextlib.ExitStack() as stack:
        _, neighbour, _ = strict.lease(stack, "victim")
        session, device, worker = strict.lease(stack, "attacker")
        with pytest.raises(Refused, match="ENDED"):
            device.op("hostile", what=[("fault", "")], on={})
        until(lambda: not lives(worker))
        assert neighbour.op("noop", b"goes on").buffers[0] == b"goes on"
        with connect(session.environment()) as again:
            again.op("noop")


def test_a_kernel_that_writes_anywhere_ends_its_worker_alone(strict: Ground) -> None:
    """Where the language lets one through: with a pointer out of a number, or beyond its buffer."""
    if "graph" not in strict.gpud.device["operations"]:
        pytest.skip("NOT TESTED: no driver of OpenCL for CPUs answers here")
    wild = (
        "__kernel void wild(__global int *x) { *(__global int *)8UL = 1; }",
        "__kernel void wild(__global int *x) { x[get_global_id(0) + 0x3fffffff] = 1; }",
    )
    for source in wild:
        graph = Graph(source)
        graph.launch("wild", (1,), (1,), graph.inout("x", 16))
        with contextlib.ExitStack() as stack:
            _, neighbour, _ = strict.lease(stack, "victim")
            session, device, _ = strict.lease(stack, "attacker")
            with contextlib.suppress(OpFailed, Refused):  # EINVAL: the language; ENDED: the kernel
                device.run(graph, x=bytes(16))
            assert neighbour.op("noop", b"goes on").buffers[0] == b"goes on"
            with connect(session.environment()) as again:
                again.op("noop")


def test_the_tasks_of_a_lease_are_limited(strict: Ground) -> None:
    if strict.who == WHO[1]:
        pytest.skip("without a user or a controller of its own a lease's tasks are not limited")
    found = attack(strict, [("fill_tasks", "most")], most=3000)
    assert taken(found) == {}


def test_an_isolated_worker_serves_its_lease_as_before(strict: Ground) -> None:
    """Its own folder is there to be written, and goes with the lease."""
    scratch = strict.gpud.state / "scratch"
    until(lambda: not list(scratch.iterdir()))  # of the leases before
    with contextlib.ExitStack() as stack:
        _, device, worker = strict.lease(stack, "attacker")
        (own,) = scratch.iterdir()
        found = device.op("hostile", what=[("plant", "own")], on={"own": str(own)}).values["found"]
        assert list(taken(found)) == ["plant own"]
        assert (own / "planted").read_bytes() == b"planted"
    until(lambda: not list(scratch.iterdir()))
    assert not lives(worker)


def test_each_lease_has_a_user_of_its_own(strict: Ground) -> None:
    if strict.who != "root":
        pytest.skip("gpud is not root here: its leases have user namespaces instead")
    with contextlib.ExitStack() as stack:
        workers = [strict.lease(stack, tenant)[2] for tenant in ("one", "one", "two")]
        real = [status_of(pid)["Uid"] for pid in workers]
    assert len(set(real)) == 3
    assert 0 not in real


def test_memory_of_gpud_and_its_children_is_unreadable(strict: Ground) -> None:
    with contextlib.ExitStack() as stack:
        worker = strict.lease(stack, "one")[2]
        for pid in (strict.gpud.process.pid, *strict.gpud.workers()):
            assert os.stat(f"/proc/{pid}/environ").st_uid == 0
        status = status_of(worker)
        assert (status["NoNewPrivs"], status["Seccomp"]) == (1, 2)
        assert Path(f"/proc/{worker}/status").read_text().count("0000000000000000\n") >= 4


def test_the_key_is_not_in_what_gpud_starts(strict: Ground) -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: only root can look into undumpable processes")
    with contextlib.ExitStack() as stack:
        strict.lease(stack, "one")
        found = []
        for pid in strict.gpud.workers():
            with contextlib.suppress(ProcessLookupError):  # of the lease before
                found.append(Path(f"/proc/{pid}/environ").read_bytes())
        assert found
        assert not any(KEY.encode() in one for one in found)


def status_of(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/status").read_text().replace(":", " ").splitlines()
    return {w[0]: int(w[1]) for w in map(str.split, lines) if len(w) > 1 and w[1].isdecimal()}


def test_a_model_reads_no_file_of_the_host(strict: Ground) -> None:
    from remote_gpu.client import Operations

    for what, sent in reading(str(strict.home / "key")).items():
        with contextlib.ExitStack() as stack:
            _, device, _ = strict.lease(stack, "attacker")
            with Operations(device) as operations:
                model = operations.resource("model", sent).content
                with pytest.raises(OpFailed) as failed:
                    device.op("onnx", model=model, inputs=[])
            assert KEY not in str(failed.value), what


def test_without_isolation_the_attempts_succeed() -> None:
    """They are real, then; and what hides memory is not given up with the rest."""
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: needs root, to become an ordinary user")
    with ground(True, "--isolation", "none") as open_one:
        keep_something(open_one)
        without = ("become_shell", ""), ("plant", "tmp")  # the second would stay on this machine
        found = attack(open_one, [one for one in [*WHAT, ("fork", "")] if one not in without])
        got = taken(found)
    wanted = """
        read key_file, read ssh_key, read other_content, write journal, fork, plant other_folder,
        connect scheduler, abstract abstract, shell, local gateway_socket, signal_to gpud,
        signal_to neighbour, remove other_folder
    """
    hidden = (
        "memory_of gpud, memory_of neighbour, read gpud_environ, trace gpud, read neighbour_environ"
    )
    reached = {one.strip() for one in got}
    assert {one.strip() for one in wanted.split(",")} <= reached
    assert {one.strip() for one in hidden.split(",")}.isdisjoint(reached)


BARE = pytest.mark.skipif(
    os.geteuid() != 0 or system.architecture() != "x86_64",
    reason="NOT TESTED: a kernel without isolation; needs root on x86-64, to play one",
)


@BARE
def test_kernels_and_programs_are_refused_where_nothing_isolates() -> None:
    with contextlib.ExitStack() as stack:
        options = ("--program", ATTEMPTS)
        bare = stack.enter_context(ground(True, *options, operations=("exec",), bare="1"))
        assert not {"graph", "exec"} & set(bare.gpud.device["operations"])
        _, device, _ = bare.lease(stack, "one")
        graph = Graph("__kernel void one(__global int *x) { x[get_global_id(0)] = 1; }")
        graph.launch("one", (4,), (1,), graph.inout("x", 16))
        run = functools.partial(device.run, graph, x=bytes(16))
        for refused in (run, functools.partial(device.op, "exec", program="attempts")):
            with pytest.raises(OpFailed, match="no seccomp") as failed:
                refused()
            assert (failed.value.code, "Landlock" in failed.value.message) == ("ENOTSUP", True)
        log = (bare.gpud.state.parent / "gpud.log").read_text()
        assert "kernels on CPUs and the operation exec are refused" in log


@BARE
def test_gpud_does_not_start_without_required_isolation() -> None:
    refused = pytest.raises(AssertionError, match=r"--isolation require: .*no seccomp")
    with refused, ground(True, "--isolation", "require", bare="1"):
        pytest.fail("it started")


def test_a_state_that_leases_could_read_is_refused() -> None:
    refused = pytest.raises(AssertionError, match="every lease may read; move it to another folder")
    with refused, ground(False, "--data", f"all={tempfile.gettempdir()}"):
        pytest.fail("it started")
