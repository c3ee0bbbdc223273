"""What isolates a lease, decided from what a machine has; the filter, run by an interpreter."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.errors import AppError
from gpu_scheduler.warm import tenant_folder
from remote_gpu.host.workers.removal import remove_tree
from remote_gpu.host.workers.sandboxes import Sandboxes
from remote_gpu.worker.isolation import bind_mounts, landlock, places, seccomp
from remote_gpu.worker.isolation.apply import Sandbox, permit
from remote_gpu.worker.isolation.policy import Facts, Policy, Setting, decide
from remote_gpu.worker.isolation.privileges import take
from remote_gpu.worker.isolation.seccomp import Permit
from remote_gpu.worker.isolation.users import BLOCK, RANGE, UserBlock

LAST = range(RANGE.stop - 2 * BLOCK, RANGE.stop)  # no gpud of this machine comes so far
ALL = Facts(users=True, mounts=True, pid_namespace=True, network=True, landlock=7, seccomp=True)
ORDINARY = Facts(pid_namespace=True, user_namespace=True, network=True, landlock=7, seccomp=True)
NR = {
    "x86_64": {
        "execve": 59,
        "clone": 56,
        "clone3": 435,
        "socket": 41,
        "socketpair": 53,
        "connect": 42,
        "ptrace": 101,
        "kill": 62,
        "read": 0,
        "prlimit64": 302,
        "fork": 57,
        "sendmsg": 46,
        "recvmsg": 47,
        "memfd_create": 319,
        "prctl": 157,
        "fchmodat": 268,
        "fchown": 93,
        "fsetxattr": 190,
        "inotify_init1": 294,
        "utimensat": 280,
        "setsockopt": 54,
    },
    "aarch64": {
        "execve": 221,
        "clone": 220,
        "clone3": 435,
        "socket": 198,
        "socketpair": 199,
        "connect": 203,
        "ptrace": 117,
        "kill": 129,
        "read": 63,
        "prlimit64": 261,
        "sendmsg": 211,
        "recvmsg": 212,
        "memfd_create": 279,
        "prctl": 167,
        "fchmodat": 53,
        "fchown": 55,
        "fsetxattr": 7,
        "inotify_init1": 26,
        "utimensat": 88,
        "setsockopt": 208,
    },
}
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOWED, KILLED = 0x7FFF0000, 0x80000000
EPERM, ENOSYS = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
SIGCHLD, THREAD, VFORK, NEWUSER = 17, 0x10000, 0x4000, 0x10000000


def verdict(code: bytes, arch: int, number: int, *arguments: int) -> int:
    """What the kernel's interpreter of classic BPF returns for a call."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, arch, 0, *padded)
    program: list[tuple[int, int, int, int]] = [
        struct.unpack_from("=HBBI", code, at) for at in range(0, len(code), 8)
    ]
    place, register = 0, 0
    while True:
        operation, if_true, if_false, value = program[place]
        place += 1
        if operation == 0x06:
            return value
        if operation == 0x20:
            (register,) = struct.unpack_from("=I", data, value)
        elif operation == 0x54:
            register &= value
        else:
            true = {
                0x15: register == value,
                0x35: register >= value,
                0x25: register > value,
                0x45: bool(register & value),
            }[operation]
            place += if_true if true else if_false


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize(
    ("call", "arguments", "strict", "linking", "starting"),
    [
        ("read", (), ALLOWED, ALLOWED, ALLOWED),
        ("sendmsg", (), ALLOWED, ALLOWED, ALLOWED),
        ("recvmsg", (), ALLOWED, ALLOWED, ALLOWED),
        ("memfd_create", (), ALLOWED, ALLOWED, ALLOWED),
        ("execve", (), EPERM, ALLOWED, ALLOWED),
        ("clone", (THREAD,), ALLOWED, ALLOWED, ALLOWED),
        ("clone", (SIGCHLD,), EPERM, EPERM, ALLOWED),
        ("clone", (SIGCHLD | VFORK,), EPERM, ALLOWED, ALLOWED),
        ("clone", (SIGCHLD | NEWUSER,), EPERM, EPERM, EPERM),
        ("clone3", (), ENOSYS, ENOSYS, ENOSYS),
        ("socket", (1,), EPERM, EPERM, EPERM),
        ("socketpair", (1, 1), ALLOWED, ALLOWED, ALLOWED),
        ("socketpair", (1, 2), EPERM, EPERM, EPERM),
        ("socketpair", (1, 2 | 0x80000), EPERM, EPERM, EPERM),
        ("connect", (), EPERM, EPERM, EPERM),
        ("ptrace", (), EPERM, EPERM, EPERM),
        ("kill", (77, 9), ALLOWED, ALLOWED, ALLOWED),
        ("kill", (78, 9), EPERM, ALLOWED, ALLOWED),
        ("kill", (2**32 - 1, 9), EPERM, ALLOWED, ALLOWED),
        ("prlimit64", (0,), ALLOWED, ALLOWED, ALLOWED),
        ("prlimit64", (78,), EPERM, EPERM, EPERM),
        ("prctl", (1,), EPERM, EPERM, EPERM),
        ("prctl", (15,), ALLOWED, ALLOWED, ALLOWED),
        ("fchmodat", (), EPERM, EPERM, EPERM),
        ("fchown", (), EPERM, EPERM, EPERM),
        ("fsetxattr", (), EPERM, EPERM, EPERM),
        ("inotify_init1", (), EPERM, EPERM, EPERM),
        ("utimensat", (3, 0), ALLOWED, ALLOWED, ALLOWED),
        ("utimensat", (3, 1), EPERM, EPERM, EPERM),
        ("utimensat", (3, 1 << 32), EPERM, EPERM, EPERM),
        ("setsockopt", (3, 1, 2), ALLOWED, ALLOWED, ALLOWED),
        ("setsockopt", (3, 1, 13), EPERM, EPERM, EPERM),
    ],
)
def test_the_seccomp_filter_of_each_policy(
    machine: str, call: str, arguments: tuple[int, ...], strict: int, linking: int, starting: int
) -> None:
    for allowed, wanted in (
        (Permit(), strict),
        (Permit(link=True, others=True), linking),
        (Permit(start=True, others=True), starting),
    ):
        code = seccomp.build(machine, allowed, 77)
        assert verdict(code, ARCH[machine], NR[machine][call], *arguments) == wanted, allowed


@given(
    st.sampled_from(["x86_64", "aarch64"]), st.integers(451, 2**32 - 1), st.integers(0, 2**32 - 1)
)
def test_newer_calls_and_other_architectures_are_refused(
    machine: str, number: int, arch: int
) -> None:
    code = seccomp.build(machine, Permit(start=True, link=True, others=True, parents=True), 1)
    assert verdict(code, ARCH[machine], number) == ENOSYS
    if arch != ARCH[machine]:
        assert verdict(code, arch, 0) == KILLED


def test_a_lease_with_its_own_user_may_change_file_attributes() -> None:
    """Any other one would change those of gpud and of other leases: Landlock holds none of it."""
    code = seccomp.build("x86_64", permit(Policy(users=True), ()), 1)
    found = [
        verdict(code, ARCH["x86_64"], NR["x86_64"][name], 3, 1)
        for name in ("fchmodat", "fsetxattr", "utimensat")
    ]
    assert found == [ALLOWED, ALLOWED, ALLOWED]
    assert not permit(Policy(user_namespace=True, landlock=7), ()).attributes


def test_a_client_of_mps_has_unix_sockets_only() -> None:
    code = seccomp.build("x86_64", Permit(local_sockets=True), 1)
    found = [verdict(code, ARCH["x86_64"], 41, family) for family in (1, 2, 10, 16)]
    assert found == [ALLOWED, EPERM, EPERM, EPERM]


def test_other_machines_have_no_filter() -> None:
    assert not seccomp.supported("riscv64")
    with pytest.raises(KeyError):
        seccomp.build("riscv64", Permit(), 1)


@pytest.mark.parametrize("facts", [ALL, ORDINARY])
def test_every_available_mechanism_is_used(facts: Facts) -> None:
    policy = decide(facts, Setting.AUTO, programs=True, kernels=True)
    assert (policy.kernels_refused, policy.programs_refused) == ("", "")
    assert (policy.execute, policy.link, policy.seccomp, policy.landlock) == (True, True, True, 7)
    assert policy.users == facts.users
    assert "seccomp" in policy.mechanisms


@pytest.mark.parametrize(
    ("facts", "kernels", "programs"),
    [
        (Facts(), False, False),
        (Facts(landlock=7), False, False),  # no system call is refused
        (
            Facts(seccomp=True, pid_namespace=True, user_namespace=True),
            False,
            False,
        ),  # nor files kept apart
        (Facts(seccomp=True, landlock=7), False, False),  # a process could outlive its lease
        (Facts(seccomp=True, landlock=1, cgroup="/c"), False, False),  # or signal gpud
        (Facts(seccomp=True, landlock=6, cgroup="/c"), True, True),
        (Facts(seccomp=True, landlock=1, pid_namespace=True), True, True),
        (Facts(seccomp=True, users=True), True, True),
        (Facts(seccomp=True, users=True, unreached=("/root",)), False, False),
        (Facts(seccomp=True, users=True, mounts=True, unreached=("/root",)), True, True),
    ],
)
def test_too_few_mechanisms_refuse_kernels_and_programs(
    facts: Facts, kernels: bool, programs: bool
) -> None:
    policy = decide(facts, Setting.AUTO, programs=True, kernels=True)
    assert (not policy.kernels_refused, not policy.programs_refused) == (kernels, programs)
    assert (policy.link, policy.execute) == (kernels, programs)


def test_a_host_without_a_compiler_need_not_end_child_processes() -> None:
    facts = Facts(seccomp=True, landlock=1)
    policy = decide(facts, Setting.AUTO, programs=False, kernels=False)
    assert policy.kernels_refused == ""
    assert permit(policy, ["cpu"]) == Permit()


@given(
    st.builds(
        Facts,
        users=st.booleans(),
        mounts=st.booleans(),
        pid_namespace=st.booleans(),
        user_namespace=st.booleans(),
        network=st.booleans(),
        landlock=st.integers(0, 9),
        seccomp=st.booleans(),
        cgroup=st.sampled_from(["", "/c"]),
        unreached=st.sampled_from([(), ("/root",)]),
    ),
    st.booleans(),
    st.booleans(),
)
def test_tenants_code_needs_restricted_calls_and_files(
    facts: Facts, programs: bool, kernels: bool
) -> None:
    policy = decide(facts, Setting.REQUIRE, programs=programs, kernels=kernels)
    held = policy.seccomp and (policy.landlock > 0 or policy.users)
    ends = policy.pid_namespace or policy.users or bool(policy.cgroup)
    assert held or policy.kernels_refused
    assert (held and ends) or not (policy.execute or policy.link)
    allowed = permit(policy, [])
    assert not (
        allowed.others and not (policy.pid_namespace or policy.users or policy.landlock >= 6)
    )


def test_isolation_none_keeps_the_free_mechanisms_only() -> None:
    policy = decide(ALL, Setting.NONE, programs=True, kernels=True)
    assert policy == Policy(execute=True, link=True)
    assert policy.mechanisms == ("undumpable",)


def test_paths_of_a_lease(tmp_path: Path) -> None:
    data, own, program = tmp_path / "data", tmp_path / "own", tmp_path / "program"
    host = places.Host(data=(data,), programs=(program,))

    def rights(
        *, execute: bool = False, link: bool = False, own_proc: bool = True
    ) -> dict[str, int]:
        found = places.allowed(
            host, [tmp_path / "lib"], [own], ["cpu"], execute=execute, link=link, own_proc=own_proc
        )
        return {str(path): access for path, access in found}

    plain = rights()
    assert plain[str(data)] == landlock.READ
    assert plain[str(own)] & landlock.WRITE == landlock.WRITE
    assert not any(access & landlock.EXECUTE for access in plain.values())
    linking = {path for path, access in rights(link=True).items() if access & landlock.EXECUTE}
    assert linking
    assert all("ld" in Path(path).name for path in linking)
    assert rights(execute=True)[str(program)] & landlock.EXECUTE
    assert "/proc" not in rights(own_proc=False)
    for path, access in plain.items():
        writes = access & ~(landlock.READ | landlock.EXECUTE)
        assert not writes or path == str(own) or path.startswith("/dev/"), path


def test_a_secret_in_a_folder_that_leases_read_is_found(tmp_path: Path) -> None:
    host = places.Host(data=(tmp_path / "data",))
    assert places.read_by_leases(tmp_path / "data" / "key", host) == tmp_path / "data"
    assert places.read_by_leases(tmp_path / "state", host) is None
    assert places.read_by_leases(Path("/usr/local/state"), host) == Path("/usr")


def test_leases_read_the_folders_of_the_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver there was found by gpud, and is loaded by its workers."""
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{tmp_path}:relative:/nonexistent")
    before = places.libraries()
    assert tmp_path in before
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert [one for one in before if one not in places.libraries()] == [tmp_path]


def test_folders_closed_to_other_users(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "below" / "more").mkdir(parents=True)
    outer = bind_mounts.closed_above(tmp_path / "x")
    closed.chmod(0o700)
    assert bind_mounts.closed_above(closed / "below" / "more") == (outer or closed)
    found = bind_mounts.outermost([closed, closed / "below", tmp_path / "absent"])
    assert found == [closed.resolve()]


def test_two_hosts_of_a_machine_take_different_users(tmp_path: Path) -> None:
    within = LAST
    first, second = (UserBlock.take(within, tmp_path) for _ in range(2))
    assert set(first.ids).isdisjoint(second.ids)
    with pytest.raises(OSError, match="in use"):
        UserBlock.take(within, tmp_path)
    first.close()
    third = UserBlock.take(within, tmp_path)
    assert third.ids == first.ids
    for block in (second, third):
        block.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: users of leases; run as root")
def test_users_of_running_leftover_processes_are_not_lent(tmp_path: Path) -> None:
    within = LAST
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, user=within[7]):
        block = UserBlock.take(within, tmp_path)
        block.close()
        assert block.ids.start == within.start + BLOCK
    block = UserBlock.take(within, tmp_path)
    block.close()
    assert block.ids.start == within.start


@pytest.mark.parametrize("policy", [Policy(), Policy(pid_namespace=True), Policy(users=True)])
def test_a_cgroup_is_required_where_nothing_else_ends_processes(
    tmp_path: Path, policy: Policy
) -> None:
    if policy.users and os.geteuid() != 0:
        pytest.skip("NOT TESTED: users of leases; run as root")
    (tmp_path / "cgroup.controllers").write_text("")
    number = os.getpid()
    (tmp_path / f"orchgpu-{number}").write_text("no folder can be made here")
    with contextlib.ExitStack() as stack:
        if not policy.pid_namespace and not policy.users:
            stack.enter_context(pytest.raises(AppError, match="no cgroups"))
        Sandboxes(replace(policy, cgroup=str(tmp_path)), tmp_path / "kept").close()


def test_no_user_is_lent_twice_and_the_longest_free_one_is_next() -> None:
    block = UserBlock(range(2_000_000_000, 2_000_000_004))
    lent = [block.lend() for _ in range(3)]
    assert len({*lent, block.killer}) == 4
    with pytest.raises(OSError, match="in use"):
        block.lend()
    block.give_back(lent[1])
    assert block.lend() == lent[1]
    groups = list(itertools.islice(block.ids, 3))
    assert block.group_of(groups) == block.ids[3]
    with pytest.raises(OSError, match="groups"):
        block.group_of(block.ids)


def test_a_secret_is_taken_out_of_the_environment() -> None:
    environment = {"KEY": "secret", "OTHER": "1"}
    take(("KEY", "ABSENT"), environment)
    assert environment == {"OTHER": "1"}


def _use(folder: Path, kept: Path) -> None:
    (folder / "left").write_bytes(b"x")
    modes = folder.stat().st_mode & 0o777, kept.stat().st_mode & 0o777
    assert modes == (0o700, 0o711)


@pytest.mark.asyncio
async def test_the_folder_of_a_sandbox_is_removed_with_it(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    sandboxes = Sandboxes(Policy(), kept)
    one = await sandboxes.make("t", 1 << 20, ("cpu",), None)
    _use(Path(one.sandbox.folder), kept)
    await one.close()
    await one.close()
    sandboxes.close()
    assert _left(tmp_path) == ({"kept", "scratch"}, [0o700])


def _left(state: Path) -> tuple[set[str], list[int]]:
    assert list((state / "scratch").iterdir()) == []
    modes = [one.stat().st_mode & 0o777 for one in (state / "kept").iterdir()]
    return {one.name for one in state.iterdir()}, modes


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: users of leases; run as root")
@pytest.mark.asyncio
async def test_kept_contents_get_the_tenants_group_without_following_links(tmp_path: Path) -> None:
    kept, elsewhere = tmp_path / "kept", tmp_path / "elsewhere"
    _before(kept, elsewhere)
    sandboxes = Sandboxes(Policy(users=True), kept)
    try:
        made = [await sandboxes.make(tenant, 1, ("cpu",), None) for tenant in ("one", "one", "two")]
        found = [one.sandbox for one in made]
        assert len({one.user for one in found}) == 3
        assert found[0].group == found[1].group != found[2].group
        assert [Path(one.compiled).name for one in found] == ["0", "1", "0"]
        _check(kept, elsewhere, found[0], found[2])
        for one in made:
            await one.close()
        again = await sandboxes.make("one", 1, ("cpu",), None)
        assert (again.sandbox.group, again.sandbox.compiled) == (found[0].group, found[0].compiled)
        assert again.sandbox.user not in {one.user for one in found}
        await again.close()
    finally:
        sandboxes.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: users of leases; run as root")
@pytest.mark.asyncio
async def test_the_group_of_a_running_lease_is_not_reused(
    tmp_path: Path,
) -> None:
    kept, secret = tmp_path / "kept", tmp_path / "secret"
    secret.write_bytes(b"")
    compiled = kept / tenant_folder("one") / "compiled" / "0"
    step = compiled
    for _ in range(1200):  # deeper than Python recurses
        step.mkdir(parents=True)
        step = step / "d"
    os.link(secret, compiled / "linked")
    sandboxes = Sandboxes(Policy(users=True), kept)
    try:
        one = await sandboxes.make("one", 1, ("cpu",), None)
        assert (secret.stat().st_uid, compiled.stat().st_uid) == (0, one.sandbox.user)
        remove_tree(kept / tenant_folder("one"))  # as the sweep of kept contents may
        two = await sandboxes.make("two", 1, ("cpu",), None)
        assert two.sandbox.group != one.sandbox.group
        for made in (one, two):
            await made.close()
        three = await sandboxes.make("three", 1, ("cpu",), None)
        assert three.sandbox.group == one.sandbox.group, "no running lease has it"
        await three.close()
    finally:
        sandboxes.close()


def _before(kept: Path, elsewhere: Path) -> None:
    """A folder of an earlier gpud's, and what a lease may have put where its host goes."""
    (elsewhere / "0").mkdir(parents=True)
    (elsewhere / "0" / "victim").write_bytes(b"")
    one, two = (kept / tenant_folder(name) for name in ("one", "two"))
    one.mkdir(parents=True)
    (one / ("a" * 64)).write_bytes(b"kept before")
    (one / ("a" * 64)).chmod(0o600)
    (one / "linked").symlink_to(elsewhere / "0" / "victim")
    (one / "compiled").symlink_to(elsewhere)
    (two / "compiled").mkdir(parents=True)
    (two / "compiled" / "0").write_bytes(b"no folder")


def _check(kept: Path, elsewhere: Path, first: Sandbox, other: Sandbox) -> None:
    victim = (elsewhere / "0" / "victim").stat()
    assert (victim.st_uid, victim.st_gid, victim.st_mode & 0o777) == (0, 0, 0o644)
    own = kept / tenant_folder("one")
    modes = [(one.stat().st_mode & 0o7777, one.stat().st_gid) for one in (own, own / ("a" * 64))]
    assert modes == [(0o2770, first.group), (0o660, first.group)]
    for sandbox in (first, other):
        compiled = Path(sandbox.compiled).lstat()
        assert (compiled.st_uid, compiled.st_mode & 0o7777) == (sandbox.user, 0o2770)
