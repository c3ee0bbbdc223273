"""The filter of system calls, run by an interpreter."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_gpu.isolation import seccomp
from remote_gpu.isolation.apply import permit
from remote_gpu.isolation.policy import IsolationPolicy
from remote_gpu.isolation.seccomp import Permit

NR = {
    "x86_64": {
        "sendto": 44,
        "sendmmsg": 307,
        "listen": 50,
        "accept4": 288,
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
        "sendto": 206,
        "sendmmsg": 269,
        "listen": 201,
        "accept4": 242,
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
    code = seccomp.build("x86_64", permit(IsolationPolicy(users=True), ()), 1)
    found = [
        verdict(code, ARCH["x86_64"], NR["x86_64"][name], 3, 1)
        for name in ("fchmodat", "fsetxattr", "utimensat")
    ]
    assert found == [ALLOWED, ALLOWED, ALLOWED]
    assert not permit(IsolationPolicy(user_namespace=True, landlock=7), ()).attributes


def test_a_client_of_mps_has_unix_sockets_only() -> None:
    code = seccomp.build("x86_64", Permit(local_sockets=True), 1)
    found = [verdict(code, ARCH["x86_64"], 41, family) for family in (1, 2, 10, 16)]
    assert found == [ALLOWED, EPERM, EPERM, EPERM]


def test_other_machines_have_no_filter() -> None:
    assert not seccomp.supported("riscv64")
    with pytest.raises(KeyError):
        seccomp.build("riscv64", Permit(), 1)


INET, INET6, UNIX, NETLINK = 2, 10, 1, 16
STREAM, DATAGRAM, RAW, CLOEXEC = 1, 2, 3, 0x80000
FASTOPEN = 0x20000000


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize(
    ("call", "arguments", "confined", "runner"),
    [
        ("socket", (INET, STREAM, 0), ALLOWED, ALLOWED),
        ("socket", (INET6, STREAM | CLOEXEC, 6), ALLOWED, ALLOWED),
        ("socket", (INET, STREAM, 262), EPERM, EPERM),  # MPTCP, which Landlock does not limit
        ("socket", (INET, STREAM, 132), EPERM, EPERM),
        ("socket", (INET, DATAGRAM, 0), EPERM, ALLOWED),
        ("socket", (INET6, DATAGRAM, 17), EPERM, ALLOWED),
        ("socket", (INET, DATAGRAM, 1), EPERM, EPERM),
        ("socket", (INET, RAW, 1), EPERM, EPERM),
        ("socket", (UNIX, STREAM, 0), EPERM, EPERM),
        ("socket", (NETLINK, RAW, 0), EPERM, EPERM),
        ("connect", (), ALLOWED, ALLOWED),
        ("listen", (), EPERM, ALLOWED),
        ("accept4", (), EPERM, ALLOWED),
        ("sendto", (3, 0, 0, 0), ALLOWED, ALLOWED),
        ("sendto", (3, 0, 0, FASTOPEN), EPERM, EPERM),
        ("sendmsg", (3, 0, FASTOPEN | 1), EPERM, EPERM),
        ("sendmmsg", (3, 0, 1, FASTOPEN), EPERM, EPERM),
        ("ptrace", (), EPERM, EPERM),
        ("execve", (), ALLOWED, ALLOWED),
    ],
)
def test_sockets_of_runs(
    machine: str, call: str, arguments: tuple[int, ...], confined: int, runner: int
) -> None:
    for network, expected in ((False, confined), (True, runner)):
        allowed = Permit(start=True, tcp=True, accept=network, datagrams=network)
        code = seccomp.build(machine, allowed, 77)
        assert verdict(code, ARCH[machine], NR[machine][call], *arguments) == expected
