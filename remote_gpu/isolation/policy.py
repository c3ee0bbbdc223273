"""The isolation of leases, decided once from the mechanisms of the machine. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

#: Version of Landlock's interface since which it restricts signals and abstract sockets.
LANDLOCK_SIGNALS = 6
#: Version since which it restricts connections.
LANDLOCK_PORTS = 4
#: Threads and processes of one lease: 16 lanes with the pools of their libraries.
TASKS_MAX = 1024


class IsolationSetting(StrEnum):
    """`gpud --isolation`."""

    AUTO = "auto"  #: all available mechanisms; tenants' code is refused where they are too few
    REQUIRE = "require"  #: gpud does not start where they are too few
    NONE = "none"  #: for a machine of one tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Mechanisms that were tried on this machine and work."""

    users: bool = False  #: gpud is root, and can change the user of a process
    mounts: bool = False  #: root can mount folders in a namespace of its own
    pid_namespace: bool = False  #: process and mount namespaces, with their own /proc
    user_namespace: bool = False  #: user namespaces, without root
    network: bool = False  #: a network namespace
    landlock: int = 0  #: version of the interface; 0 = none
    seccomp: bool = False
    cgroup: str = ""  #: folder below which groups can be made; "" = none
    unreached: tuple[str, ...] = ()  #: folders that a lease's user may not pass
    why: Mapping[str, str] = field(
        default_factory=dict
    )  #: mechanism → the reason why it is missing


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationPolicy:
    """The mechanisms in use. The default is the weakest: undumpable, no new privileges."""

    users: bool = False  #: a user per lease
    user_namespace: bool = False  #: a user namespace per lease
    pid_namespace: bool = False  #: a process namespace per lease, which ends as a whole
    network: bool = False
    landlock: int = 0
    seccomp: bool = False
    cgroup: str = ""
    execute: bool = False  #: the operator's programs may be started
    link: bool = False  #: the linker of a compiler for CPUs may be started
    kernels_refused: str = ""  #: the reason why kernels do not run on the CPU; "" = they do
    programs_refused: str = ""  #: the same for the operation `exec`
    runs_refused: str = ""  #: the same for runs of functions

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The names of the mechanisms in use."""
        landlock = f"Landlock {self.landlock}" if self.landlock else ""
        named = {
            "a user per lease": self.users,
            "a user namespace per lease": self.user_namespace,
            "a process namespace per lease": self.pid_namespace,
            "no network": self.network,
            landlock: bool(self.landlock),
            "seccomp": self.seccomp,
            "a cgroup per lease": bool(self.cgroup),
            "undumpable": True,
        }
        return tuple(name for name, used in named.items() if used)


def decide(
    facts: MachineFacts, setting: IsolationSetting, *, programs: bool, kernels: bool
) -> IsolationPolicy:
    """Decide from the facts. `programs`: the operator listed some for `exec`; `kernels`: a compiler
    for CPUs may be installed, which starts a linker."""
    if setting is IsolationSetting.NONE:
        return IsolationPolicy(execute=programs, link=kernels)
    users = facts.users and (facts.mounts or not facts.unreached)
    refused = _missing(facts, users)
    unending = (
        ""
        if facts.pid_namespace or users or facts.cgroup
        else (
            "processes of a program could outlive its lease: there is neither a process namespace"
            " nor a user per lease nor a cgroup"
        )
    )
    exposed = (
        ""
        if facts.pid_namespace or users or facts.landlock >= LANDLOCK_SIGNALS
        else ("a program could send signals to gpud and to other leases")
    )
    programs_refused = refused or unending or exposed
    kernels_refused = refused or (programs_refused if kernels else "")
    return IsolationPolicy(
        users=users,
        user_namespace=facts.user_namespace and facts.pid_namespace,
        pid_namespace=facts.pid_namespace,
        network=facts.network,
        landlock=facts.landlock,
        seccomp=facts.seccomp,
        cgroup=facts.cgroup,
        execute=programs and not programs_refused,
        link=kernels and not kernels_refused,
        kernels_refused=kernels_refused,
        programs_refused=programs_refused,
        runs_refused=refused or exposed or _unlimited(facts),
    )


def _unlimited(facts: MachineFacts) -> str:
    """The reason why a function cannot run here, beside those of programs; "" = it can.

    It needs the network, so only ports limit it; and its processes must end with a killed gpud.
    """
    if facts.landlock < LANDLOCK_PORTS:
        why = facts.why.get("landlock", f"this kernel has version {facts.landlock}")
        return f"Landlock {LANDLOCK_PORTS} (Linux 6.7) does not limit its connections ({why})"
    if not (facts.pid_namespace or facts.cgroup):
        return "neither a process namespace nor a cgroup ends its processes"
    return ""


def _missing(facts: MachineFacts, users: bool) -> str:
    """The reason why tenants' code cannot be restricted; "" = it can.

    Files need Landlock or a user per lease; system calls (programs, sockets, signals) need seccomp.
    """
    missing = []
    if not facts.landlock and not users:
        reasons = {name: facts.why.get(name, "") for name in ("landlock", "users")}
        if facts.unreached:
            reasons["users"] = f"a lease's user could not enter {', '.join(facts.unreached)}"
        reasons_text = "; ".join(f"{name}: {why}" for name, why in reasons.items() if why)
        missing.append(f"neither Landlock nor a user per lease protects files ({reasons_text})")
    if not facts.seccomp:
        missing.append(f"no seccomp ({facts.why.get('seccomp', 'not tried')})")
    return " and ".join(missing)
