"""What holds a lease's processes: decided once, from what the machine has. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

#: Of Landlock: signals and abstract sockets are held since this version of its interface.
LANDLOCK_SIGNALS = 6
#: Threads and processes of one lease: 16 lanes with the pools of their libraries.
TASKS_MAX = 1024


class Setting(StrEnum):
    """`gpud --isolation`."""

    AUTO = "auto"  #: what the machine has; code of tenants is refused where that is too little
    REQUIRE = "require"  #: gpud does not start where it is too little
    NONE = "none"  #: none: one tenant's machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was tried on this machine, and worked."""

    users: bool = False  #: processes can be given users of their own: gpud is root
    mounts: bool = False  #: folders can be mounted where nobody else sees it, as root
    spaces: bool = False  #: process and mount namespaces, with a /proc of their own
    own_users: bool = False  #: by a user namespace, without root
    network: bool = False  #: a network namespace
    landlock: int = 0  #: version of the interface; 0 = none
    seccomp: bool = False
    cgroup: str = ""  #: folder below which groups can be made; "" = none
    unreached: tuple[str, ...] = ()  #: folders that a lease's user may not pass
    why: Mapping[str, str] = field(default_factory=dict)  #: mechanism → why it is not there


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is used. The default is the weakest: memory hidden, no more privileges."""

    users: bool = False  #: a user per lease
    own_users: bool = False  #: a user namespace per lease
    spaces: bool = False  #: a process namespace per lease, which ends as a whole
    network: bool = False
    landlock: int = 0
    seccomp: bool = False
    cgroup: str = ""
    execute: bool = False  #: programs of the operator may be started
    link: bool = False  #: the linker of a compiler for CPUs may be
    kernels_refused: str = ""  #: why code of tenants does not run on the CPU; "" = it does
    programs_refused: str = ""  #: the same of the operation `exec`

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """Those in use, for people."""
        landlock = f"Landlock {self.landlock}" if self.landlock else ""
        named = {
            "a user per lease": self.users,
            "a user namespace per lease": self.own_users,
            "a process namespace per lease": self.spaces,
            "no network": self.network,
            landlock: bool(self.landlock),
            "seccomp": self.seccomp,
            "a cgroup per lease": bool(self.cgroup),
            "undumpable": True,
        }
        return tuple(name for name, used in named.items() if used)


def decide(facts: Facts, setting: Setting, *, programs: bool, kernels: bool) -> Policy:
    """`programs`: the operator listed some for `exec`; `kernels`: a compiler for CPUs may be here,
    which starts a linker."""
    if setting is Setting.NONE:
        return Policy(execute=programs, link=kernels)
    users = facts.users and (facts.mounts or not facts.unreached)
    refused = _missing(facts, users)
    without_end = (
        ""
        if facts.spaces or users or facts.cgroup
        else (
            "what a program starts could outlive its lease: there is neither a process namespace"
            " nor a user per lease nor a cgroup"
        )
    )
    exposed = (
        ""
        if facts.spaces or users or facts.landlock >= LANDLOCK_SIGNALS
        else ("a program could send signals to gpud and to other leases")
    )
    programs_refused = refused or without_end or exposed
    kernels_refused = refused or (programs_refused if kernels else "")
    return Policy(
        users=users,
        own_users=facts.own_users and facts.spaces,
        spaces=facts.spaces,
        network=facts.network,
        landlock=facts.landlock,
        seccomp=facts.seccomp,
        cgroup=facts.cgroup,
        execute=programs and not programs_refused,
        link=kernels and not kernels_refused,
        kernels_refused=kernels_refused,
        programs_refused=programs_refused,
    )


def _missing(facts: Facts, users: bool) -> str:
    """Why tenants' code cannot be held here; "": it can.

    Files need Landlock or a user per lease; calls (programs, sockets, signals) need seccomp.
    """
    missing = []
    if not facts.landlock and not users:
        reasons = {name: facts.why.get(name, "") for name in ("landlock", "users")}
        if facts.unreached:
            reasons["users"] = f"they could not pass {', '.join(facts.unreached)}"
        told = "; ".join(f"{name}: {why}" for name, why in reasons.items() if why)
        missing.append(f"neither Landlock nor a user per lease keeps files apart ({told})")
    if not facts.seccomp:
        missing.append(f"no seccomp ({facts.why.get('seccomp', 'not tried')})")
    return " and ".join(missing)
