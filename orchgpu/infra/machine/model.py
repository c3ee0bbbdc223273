"""A machine of a stack as plain data."""

from __future__ import annotations

from collections.abc import Mapping

from corekit.values import Value

SCHEDULER, HOST = "scheduler", "host"


class Machine(Value):
    """The settings in `machine.json`, from user data (infra/cloudformation/orchgpu.yaml)."""

    kind: str  #: `SCHEDULER` or `HOST`
    stack: str
    region: str
    schedulers: tuple[str, ...]  #: addresses in the network
    state_bucket: str
    logs: str  #: log group
    interfaces: Mapping[str, str] = {}  #: of schedulers: network interface → group in the template
    gpud: bool = False  #: a scheduler's machine is a GPU host, too
    public: bool = False  #: functions reach gateways by their public addresses
    hook: str = ""  #: of a host's group, completed when gpud has ended
    table: str = ""
    secret: str = ""
    host_roles: tuple[str, ...] = ()  #: ARNs of roles whose machines join as GPU hosts
    pools: tuple[str, ...] = ()  #: groups of GPU hosts, of which the first one has `gpu_min` always
    gpu_types: tuple[str, ...] = ()  #: instance types, any of which a group starts
    gpu_min: int = 0
    gpu_max: int = 0  #: hosts of each group
    on_demand_pct: int = 100  #: part of the hosts that is not spot

    def endpoints(self, port: int) -> str:
        """That port of every scheduler, as options and variables have them."""
        return ",".join(f"{address}:{port}" for address in self.schedulers)

    @property
    def authority_key(self) -> str:
        """The object with the certificate of the scheduler's authority."""
        return f"infra/{self.stack}/ca.pem"


class Identity(Value):
    """This machine as the instance metadata describes it."""

    instance: str
    subnet: str
    private: str  #: address
    public: str = ""  #: address; "" = none


class Interface(Value):
    """A network interface of the stack."""

    id: str
    address: str
    subnet: str
    instance: str = ""  #: that it is attached to; "" = none


class System(Value):
    """The secret of a stack, which its first scheduler fills."""

    master: str  #: 64 hex digits
    keys: Mapping[str, object]  #: the content of a keys file
    ca: str  #: PEM
    ca_key: str  #: PEM
    orchestrator: str  #: keys of the scheduler, each of a program or of its people
    console: str
    collect: str
    fleet: str
    operator: str


class File(Value):
    """A file of the machine."""

    path: str
    text: str
    mode: int = 0o644
    group: str = ""  #: that may read it; "" = root's
