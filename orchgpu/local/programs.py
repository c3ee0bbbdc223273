"""The programs of a local system, with their commands, and the order of their start.

From settings and the ready files of running programs to `Program`s. A stage uses the
addresses of the stages before; programs stop in reverse order.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from corekit.net.addresses import address_of
from corekit.values import Value, field
from orchgpu.local.child import Program, Ready
from orchgpu.local.fleet import fleet_of, write_processes
from orchgpu.local.home import Home
from orchgpu.local.ports import fixed_address

#: The cloud of own hosts, with programs, variables and a provider of its own.
OWN = "own"
CLOUDS = ("embedded", "moto", OWN)
HOSTS = ("gpu-a", "gpu-b")

#: File of the history, for the console and for commands.
HISTORY_VARIABLE = "ORCHGPU_HISTORY"

ReadyFiles = Mapping[str, Ready]  #: by the program's name


#: Maximum memory of each host, which is otherwise a quarter of the machine's: a demo fits anywhere.
HOST_MEMORY_MIB_MAX = 4096


def _own_cores() -> tuple[int, ...]:
    return tuple(sorted(os.sched_getaffinity(0)))


def _memory_mib() -> int:
    whole_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return max(256, min(HOST_MEMORY_MIB_MAX, whole_mib // 4))


class LocalSettings(Value):
    """The settings of a local system, from the command that starts it."""

    cloud: str = "embedded"  #: one of CLOUDS
    #: Usable cores of this machine; each host owns a part.
    cores: tuple[int, ...] = field(default_factory=_own_cores)
    host_memory_mib: int = field(default_factory=_memory_mib)  #: of each host
    data: Mapping[str, str] = field(default_factory=dict)  #: resident on every host: name → file
    #: Middlewares of every host besides the built-in one: name → its server's program.
    middlewares: Mapping[str, str] = field(default_factory=dict)
    #: Programs of every host: name → command, as of `gpud --program`.
    programs: Mapping[str, str] = field(default_factory=dict)
    data_space_gib: float = 0.0  #: of every host, for data sets that functions declare
    images_mib: int = 0  #: of every host, for OCI images; 0 = none is run
    fleet: tuple[int, int] | None = None  #: fewest and most hosts, which come and go; None: `HOSTS`
    emulate: str = ""  #: file of emulated devices of the first host
    verify_signatures: bool = False  #: the embedded cloud serves the holder of its key alone
    weather: str = ""  #: of the embedded cloud, as `local_cloud` reads it; empty = none
    #: Additional host names by which clients and pages may reach the cloud.
    allowed_hosts: tuple[str, ...] = ()


class Programs:
    """Builds the programs of one system, stage by stage."""

    def __init__(self, settings: LocalSettings, home: Home, environment: Mapping[str, str]) -> None:
        self._settings = settings
        self._home = home
        self._environment = environment
        self._events = ""  #: "address:port" of the receiver of the store's events

    def stages(self) -> tuple[tuple[str, ...], ...]:
        """Names; the programs of one stage start together, after all of the stage before."""
        bridge: tuple[tuple[str, ...], ...] = (
            (("bridge",),) if self._settings.cloud == "moto" else ()
        )
        hosts = HOSTS if self._settings.fleet is None else ("fleet",)
        database = ("database",) if self._settings.cloud == OWN else ()
        return (
            ("cloud", *database, "scheduler"),
            *bridge,
            hosts,
            ("orchestrator", "console", "collector"),
        )

    def program(self, name: str, ready: ReadyFiles) -> Program:
        """The program of that name, given the ready files of the stages before.

        The entry of the program itself has its last addresses: it listens there again.
        """
        if name in HOSTS:
            return self._host(name, ready)
        match name:
            case "cloud":
                return self._store(ready) if self._settings.cloud == OWN else self._cloud(ready)
            case "database":
                return self._database()
            case "scheduler":
                return self._scheduler(ready)
            case "bridge":
                return self._bridge(ready)
            case "console":
                return self._console(ready)
            case "collector":
                return self._collector(ready)
            case "fleet":
                return self._fleet(ready)
            case _:
                return self._orchestrator(ready)

    def _cloud(self, ready: ReadyFiles) -> Program:
        module = "orchgpu.local.moto" if self._settings.cloud == "moto" else "local_cloud.server"
        listen = last_address(ready, "cloud", "endpoint")
        command = [module, "--listen", listen, *self._allowed_hosts()]
        if self._settings.cloud == "embedded":
            command += ["--state", str(self._home.state("cloud"))]
            command += ["--verify-signatures"] if self._settings.verify_signatures else []
            command += ["--weather", self._settings.weather] if self._settings.weather else []
        return self._built("cloud", tuple(command), "endpoint", {})

    def _store(self, ready: ReadyFiles) -> Program:
        command = (
            *("orchgpu.local.servers", "store", "--state", str(self._home.state("store"))),
            *("--listen", last_address(ready, "cloud", "endpoint")),
            *("--events", f"http://{self._events_address(ready)}/v1/events/store"),
            *("--token-file", str(self._events_token)),
        )
        return self._built("cloud", command, "endpoint", {})

    def _database(self) -> Program:
        state = str(self._home.state("database"))
        command = ("orchgpu.local.servers", "database", "--state", state)
        return self._built("database", command, None, {})

    def _events_address(self, ready: ReadyFiles) -> str:
        """The address for the store's events, chosen before the orchestrator starts."""
        if not self._events:
            self._events = last_address(ready, "orchestrator", "store_events")
        return self._events

    @property
    def _events_token(self) -> Path:
        return self._home.path / "store-events-token"

    def _bridge(self, ready: ReadyFiles) -> Program:
        command = ("local_cloud.bridge", "--endpoint", str(ready["cloud"]["endpoint"]))
        state = ("--state", str(self._home.state("bridge")))
        return self._built("bridge", (*command, *state), None, _of_cloud(ready))

    def _scheduler(self, ready: ReadyFiles) -> Program:
        doors = (
            *("--listen", last_address(ready, "scheduler", "socket")),
            *("--http", last_address(ready, "scheduler", "http")),
        )
        offers = str(fleet_of(self._home).offers)
        command = (
            *("gpu_scheduler.daemon", "--state", str(self._home.state("scheduler")), *doors),
            *(() if self._settings.fleet is None else ("--capacity", offers)),
        )
        return self._built("scheduler", command, "socket", {})

    def _fleet(self, ready: ReadyFiles) -> Program:
        """The fleet, and how it starts a host: all hosts share all cores."""
        scheduler = str(ready["scheduler"]["socket"])
        host = (
            *(sys.executable, "-m", "remote_gpu.host", "--ephemeral", "--no-nvml"),
            *("--host-id", "{host}", "--scheduler", scheduler, "--state", "{state}"),
            *("--cpus", ",".join(str(core) for core in self._settings.cores)),
            *self._of_every_host(),
        )
        fleet = write_processes(self._home, host)
        command = (
            *("orchgpu", "fleet", "run", "--stop-hosts", "--scheduler", scheduler),
            *("--offers", str(fleet.offers), "--provider", fleet.provider),
            *("--memory", str(fleet.memory)),
        )
        return self._built("fleet", command, None, {})

    def _of_every_host(self) -> tuple[str, ...]:
        return (
            *("--memory-mib", str(self._settings.host_memory_mib)),
            *("--drain-s", "0"),  # the whole system stops: no other host takes its jobs
            *("--data-space", f"{self._settings.data_space_gib:g}"),
            *("--images-mib", str(self._settings.images_mib)),
            *_each("--data", self._settings.data),
            *_each("--middleware", self._settings.middlewares),
            *_each("--program", self._settings.programs),
        )

    def _host(self, name: str, ready: ReadyFiles) -> Program:
        cores = cores_of(HOSTS.index(name), len(HOSTS), self._settings.cores)
        emulate = self._settings.emulate
        command = (
            "remote_gpu.host",
            *("--host-id", name, "--scheduler", str(ready["scheduler"]["socket"])),
            *("--listen", last_address(ready, name, "gateway")),
            *("--metrics", last_address(ready, name, "metrics")),
            *("--state", str(self._home.state(name))),
            *("--cpus", ",".join(str(core) for core in cores)),
            *self._sharers(name),
            *(() if name == HOSTS[0] else ("--no-nvml",)),  # one machine: its GPUs are one host's
            *(("--emulate", emulate) if emulate and name == HOSTS[0] else ()),
            *self._of_every_host(),
        )
        return self._built(name, command, "gateway", {})

    def _allowed_hosts(self) -> list[str]:
        return [part for name in self._settings.allowed_hosts for part in ("--allow-host", name)]

    def _sharers(self, name: str) -> tuple[str, ...]:
        if len(self._settings.cores) >= len(HOSTS):
            return ()
        return tuple(a for host in HOSTS if host != name for a in ("--cpus-shared-with", host))

    def _orchestrator(self, ready: ReadyFiles) -> Program:
        command = (
            *("orchgpu", "orchestrate", "--scheduler", str(ready["scheduler"]["socket"])),
            *("--metrics", last_address(ready, "orchestrator", "metrics")),
        )
        events = {
            "ORCHGPU_STORE_EVENTS": self._events_address(ready),
            "ORCHGPU_STORE_EVENTS_TOKEN_FILE": str(self._events_token),
        }
        more = events if self._settings.cloud == OWN else {}
        return self._built("orchestrator", command, None, {**_of_cloud(ready), **more})

    def _console(self, ready: ReadyFiles) -> Program:
        command = (
            *("orchgpu", "web", "--scheduler", str(ready["scheduler"]["socket"])),
            *("--scheduler-http", str(ready["scheduler"]["http"])),
            *("--listen", last_address(ready, "console", "http")),
            *("--metrics", last_address(ready, "console", "metrics")),
            *self._allowed_hosts(),
        )
        history = {HISTORY_VARIABLE: str(self._home.history)}
        return self._built("console", command, "http", {**_of_cloud(ready), **history})

    def _collector(self, ready: ReadyFiles) -> Program:
        command = (
            *("orchgpu", "collect", "--scheduler-http", str(ready["scheduler"]["http"])),
            *("--store", str(self._home.history)),
        )
        return self._built("collector", command, None, {})

    def _built(
        self,
        name: str,
        command: tuple[str, ...],
        address_key: str | None,
        environment: Mapping[str, str],
    ) -> Program:
        ready_file = self._home.ready / f"{name}.json"
        return Program(
            name=name,
            command=(sys.executable, "-m", *command, "--ready-file", str(ready_file)),
            ready_file=ready_file,
            log=self._home.logs / f"{name}.log",
            environment={**self._environment, **environment},
            address_key=address_key,
        )


def last_address(ready: ReadyFiles, name: str, key: str) -> str:
    """The last `address:port` of the program, else a free one that only this machine reaches."""
    return address_of(str(ready.get(name, {}).get(key) or fixed_address()))


def _each(option: str, named: Mapping[str, str]) -> Iterator[str]:
    for name, path in sorted(named.items()):
        yield from (option, f"{name}={path}")


def cores_of(index: int, parts: int, cores: tuple[int, ...]) -> tuple[int, ...]:
    """The cores of one part; with fewer cores than parts, all parts share all cores."""
    if len(cores) < parts:
        return cores
    size, rest = divmod(len(cores), parts)
    start = index * size + min(index, rest)
    return cores[start : start + size + (1 if index < rest else 0)]


def key_pair(ready: ReadyFiles) -> tuple[str, str]:
    """Access key and secret of a cloud that verifies signatures; empty where it does not."""
    found = ready["cloud"].get("credentials")
    if not isinstance(found, Mapping):
        return "", ""
    return str(found.get("access_key", "")), str(found.get("secret_key", ""))


def _of_cloud(ready: ReadyFiles) -> dict[str, str]:
    return cloud_environment(str(ready["cloud"]["endpoint"]), key_pair(ready), queues_of(ready))


def queues_of(ready: ReadyFiles) -> str:
    """The address of the database of queues; empty for a cloud with queues of its own."""
    return str(ready.get("database", {}).get("queues", ""))


def cloud_environment(
    endpoint: str, keys: tuple[str, str] = ("", ""), queues: str = ""
) -> dict[str, str]:
    """The variables by which any AWS client of a process uses the local cloud only.

    `queues`: the database of the cloud of own hosts, whose endpoint is that of S3 alone.
    """
    where = {"AWS_ENDPOINT_URL": endpoint}
    if queues:
        where = {"AWS_ENDPOINT_URL_S3": endpoint, "ORCHGPU_QUEUES": queues}
        where["ORCHGPU_PROVIDER"] = OWN
    return {
        **where,
        "AWS_ACCESS_KEY_ID": keys[0] or "local",
        "AWS_SECRET_ACCESS_KEY": keys[1] or "local",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def base_environment(outer: Mapping[str, str], home: Home, import_root: Path) -> dict[str, str]:
    """This process's environment without AWS accounts, proxies and LocalStack.

    Temporary files go below the home, so that they end with it. Outside of an installation the
    programs find our packages by `import_root`.
    """
    kept = {k: v for k, v in outer.items() if not k.upper().startswith(_FOREIGN)}
    kept["TMPDIR"] = str(home.temporary)
    kept["NO_PROXY"] = kept["no_proxy"] = "127.0.0.1,localhost"
    if import_root.name != "site-packages":
        paths = [str(import_root), outer.get("PYTHONPATH", "")]
        kept["PYTHONPATH"] = ":".join(path for path in paths if path)
    return kept


_FOREIGN = ("AWS_", "LOCALSTACK_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "USE_SSL")
