"""seccomp: a filter that refuses system calls which a worker never needs, and all newer ones.

A filter is a small program of the kernel's (classic BPF), checked at every call, inherited by all
threads and processes, and never taken back. Refused calls fail as for a lack of rights (EPERM);
unknown ones as on an older kernel (ENOSYS), so that libraries fall back to older calls.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from dataclasses import dataclass
from typing import Final

from remote_gpu.isolation.system import prctl

#: x86-64 and aarch64; None where there is no such call. From <asm/unistd_64.h> and
#: <asm-generic/unistd.h>.
_ALWAYS: Final[dict[str, tuple[int | None, int | None]]] = {
    # other processes' memory, descriptors and files
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27),
    # shared by key, not by file: no other rule covers it
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "semctl": (66, 191),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    # the kernel's own machinery
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "syslog": (103, 116),
    "ioperm": (173, None),
    "iopl": (172, None),
    "modify_ldt": (154, None),
    "nfsservctl": (180, 42),
    "lookup_dcookie": (212, 18),
    "vhangup": (153, 58),
    "uselib": (134, None),
    "_sysctl": (156, None),
    "personality": (135, 92),
    # another view of the machine
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "open_tree": (428, 428),
    "mount_setattr": (442, 442),
    "setns": (308, 268),
    "unshare": (272, 97),
    # priorities, also of others
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
}
#: New ways out; a lane's socket could be disconnected and sent elsewhere.
_CONNECTING: Final[dict[str, tuple[int | None, int | None]]] = {
    "connect": (42, 203),
    "bind": (49, 200),
}
#: `listen` binds a socket that is not bound, by a way that Landlock does not check.
_ACCEPTING: Final[dict[str, tuple[int | None, int | None]]] = {
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
}
_STARTING: Final[dict[str, tuple[int | None, int | None]]] = {
    "execve": (59, 221),
    "execveat": (322, 281),
    "vfork": (58, None),
}
_FORKING: Final[dict[str, tuple[int | None, int | None]]] = {"fork": (57, None)}
#: Rights of a file's owner, which Landlock does not restrict.
_ATTRIBUTES: Final[dict[str, tuple[int | None, int | None]]] = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
}
_TO_OTHERS: Final[dict[str, tuple[int | None, int | None]]] = {
    "kill": (62, 129),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
}
_SOCKET, _SOCKETPAIR, _CLONE, _CLONE3 = (41, 198), (53, 199), (56, 220), (435, 435)
_TKILL, _AFFINITY, _PRLIMIT, _IOCTL, _PRCTL = (
    (200, 130),
    (203, 122),
    (302, 261),
    (16, 29),
    (157, 167),
)
_SETSOCKOPT, _UTIMENSAT = (54, 208), (280, 88)
_SENDTO, _SENDMSG, _SENDMMSG = (44, 206), (46, 211), (307, 269)
_LAST_KNOWN: Final = 450  #: set_mempolicy_home_node, of Linux 5.17

_AUDIT_ARCH: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # <linux/audit.h>
_X32_BIT: Final = 0x40000000  # the same calls of another ABI

_LD_ABS, _JEQ, _JGE, _JGT, _JSET, _RET, _AND = 0x20, 0x15, 0x35, 0x25, 0x45, 0x06, 0x54
_NR, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_REFUSE, _UNKNOWN = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS

_CLONE_VFORK, _CLONE_THREAD = 0x00004000, 0x00010000  # <linux/sched.h>
_CLONE_NEW: Final = 0x7E020000  # user, pid, net, ipc, uts, cgroup and mount namespaces
_SOCK_TYPE_MASK, _SOCK_STREAM, _SOCK_DGRAM, _SOCK_SEQPACKET = 0xF, 1, 2, 5
_AF_UNIX: Final = 1
_INTERNET: Final = (2, 10)  # AF_INET, AF_INET6
_ANY, _TCP, _UDP = 0, 6, 17  # <linux/in.h>; MPTCP and SCTP are streams too
_MSG_FASTOPEN: Final = 0x20000000  # connects without the call that Landlock checks
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C  # type into, or paste from, a terminal
_SO_LINGER: Final = 13  # a socket's last close would wait, and that may be gpud's
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2

_Code = list[tuple[int, int, int, int]]  # code, jump if true, jump if false, constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """The exceptions of one worker's filter."""

    start: bool = False  #: other programs, for the operation `exec`
    link: bool = False  #: a compiler's linker, in a child that shares our memory until its `exec`
    local_sockets: bool = False  #: of the Unix family, for clients of NVIDIA MPS
    tcp: bool = False  #: sockets of TCP; Landlock limits their ports
    accept: bool = False  #: connections of others to sockets of TCP
    datagrams: bool = False  #: sockets of UDP too
    attributes: bool = False  #: modes, owners, dates of files: its user owns no others' files
    others: bool = False  #: name other processes, from which another mechanism protects
    parents: bool = (
        False  #: request a signal at a parent's end: where no namespace ends them with it
    )


def supported(machine: str) -> bool:
    """True for a machine whose numbers of calls are known."""
    return machine in _AUDIT_ARCH


def build(machine: str, permit: Permit, pid: int) -> bytes:
    """The filter for a process with number `pid` on a machine. Pure. Raises KeyError for others."""
    column = 0 if machine == "x86_64" else 1
    code: _Code = [
        (_LD_ABS, 0, 0, _ARCH),
        (_JEQ, 1, 0, _AUDIT_ARCH[machine]),
        (_RET, 0, 0, _KILL),
        (_LD_ABS, 0, 0, _NR),
    ]
    if machine == "x86_64":
        code += _if(_JGE, _X32_BIT, _UNKNOWN)
    code += _if(_JGT, _LAST_KNOWN, _UNKNOWN)
    refused = _ALWAYS
    if not permit.start:
        refused = refused | _FORKING
        if not permit.link:
            refused = refused | _STARTING
    if not permit.attributes:
        refused = refused | _ATTRIBUTES
    if not permit.tcp:
        refused = refused | _CONNECTING
    if not permit.accept:
        refused = refused | _ACCEPTING
    for numbers in refused.values():
        if (number := numbers[column]) is not None:
            code += _if(_JEQ, number, _REFUSE)
    code += _if(_JEQ, _CLONE3[column], _UNKNOWN)  # its flags lie in memory: libraries use clone
    for number, rules in _conditions(column, permit, pid):
        code += [(_JEQ, 0, len(rules), number), *rules]
    code.append((_RET, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *one) for one in code)


def _conditions(column: int, permit: Permit, pid: int) -> list[tuple[int, _Code]]:
    found: list[tuple[int, _Code]] = [
        (_CLONE[column], _clone(permit)),
        (_SOCKETPAIR[column], _socketpair()),
        (_SOCKET[column], _sockets(permit)),
        (_PRLIMIT[column], _only(0, (0, pid))),
        (_IOCTL[column], _but(1, (_TIOCSTI, _TIOCLINUX))),
        (_SETSOCKOPT[column], _but(2, (_SO_LINGER,))),
    ]
    if not permit.attributes:
        found.append((_UTIMENSAT[column], _of_descriptor(1)))
    if permit.tcp:
        for numbers, flags in ((_SENDTO, 3), (_SENDMSG, 2), (_SENDMMSG, 3)):
            found.append((numbers[column], _without(flags, _MSG_FASTOPEN)))
    if not permit.parents:
        found.append((_PRCTL[column], _but(0, (_PR_SET_PDEATHSIG,))))
    if not permit.others:
        for others in _TO_OTHERS.values():
            number = others[column]
            assert number is not None, "both architectures have these"
            found.append((number, _only(0, (pid,))))
        found.append((_AFFINITY[column], _only(0, (0, pid))))
        found.append((_TKILL[column], _refused()))  # a thread's number may be another's process
    return found


def _argument(index: int) -> tuple[int, int, int, int]:
    """Load the low half of an argument: an int, on little-endian machines."""
    return (_LD_ABS, 0, 0, _ARGUMENTS + 8 * index)


def _if(test: int, value: int, then: int) -> _Code:
    return [(test, 0, 1, value), (_RET, 0, 0, then)]


def _refused() -> _Code:
    return [(_RET, 0, 0, _REFUSE)]


def _only(index: int, values: tuple[int, ...]) -> _Code:
    rules = [_argument(index)]
    for value in values:
        rules += _if(_JEQ, value & 0xFFFFFFFF, _ALLOW)
    return [*rules, (_RET, 0, 0, _REFUSE)]


def _but(index: int, values: tuple[int, ...]) -> _Code:
    rules = [_argument(index)]
    for value in values:
        rules += _if(_JEQ, value, _REFUSE)
    return [*rules, (_RET, 0, 0, _ALLOW)]


def _without(index: int, bit: int) -> _Code:
    return [_argument(index), *_if(_JSET, bit, _REFUSE), (_RET, 0, 0, _ALLOW)]


def _sockets(permit: Permit) -> _Code:
    """Allow the families, types and protocols of the permit."""
    rules = [_argument(0)]
    if permit.local_sockets:
        rules += _if(_JEQ, _AF_UNIX, _ALLOW)
    if permit.tcp:
        types = [(_SOCK_STREAM, _TCP), *([(_SOCK_DGRAM, _UDP)] if permit.datagrams else [])]
        inner = [(_argument(1)), (_AND, 0, 0, _SOCK_TYPE_MASK)]
        for kind, protocol in types:
            only = [_argument(2), *_if(_JEQ, _ANY, _ALLOW), *_if(_JEQ, protocol, _ALLOW)]
            only.append((_RET, 0, 0, _REFUSE))
            inner += [(_JEQ, 0, len(only), kind), *only]
        inner.append((_RET, 0, 0, _REFUSE))
        ipv4, ipv6 = _INTERNET
        rules += [(_JEQ, 1, 0, ipv4), (_JEQ, 0, len(inner), ipv6), *inner]
    return [*rules, (_RET, 0, 0, _REFUSE)]


def _of_descriptor(index: int) -> _Code:
    """Allow a call without a path: both halves of its address are 0."""
    low, high = _argument(index), (_LD_ABS, 0, 0, _ARGUMENTS + 8 * index + 4)
    return [low, (_JEQ, 0, 3, 0), high, *_if(_JEQ, 0, _ALLOW), (_RET, 0, 0, _REFUSE)]


def _clone(permit: Permit) -> _Code:
    rules = [_argument(0), *_if(_JSET, _CLONE_NEW, _REFUSE)]
    if not permit.start:
        wanted = _CLONE_THREAD | (_CLONE_VFORK if permit.link else 0)
        rules += [*_if(_JSET, wanted, _ALLOW), (_RET, 0, 0, _REFUSE)]
    return [*rules, (_RET, 0, 0, _ALLOW)]


def _socketpair() -> _Code:
    """Allow streams and packets only: a datagram socket could send to any address."""
    masked = [_argument(1), (_AND, 0, 0, _SOCK_TYPE_MASK)]
    for value in (_SOCK_STREAM, _SOCK_SEQPACKET):
        masked += _if(_JEQ, value, _ALLOW)
    return [*masked, (_RET, 0, 0, _REFUSE)]


class _Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def install(code: bytes) -> None:
    """Restrict this thread and its children by a filter of `build`. Raises OSError.

    Needs `set_no_new_privileges` before.
    """
    program = _Program(len(code) // 8, code)
    address = ctypes.addressof(program)
    prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, address, what="seccomp")
