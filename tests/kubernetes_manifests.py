"""The manifests of infra/kubernetes, and their disagreements with the programs that they run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import yaml

import gpu_scheduler.daemon.cli
import remote_gpu.host.cli
from corekit.aio.environment import SCALE_VARIABLE
from corekit.budget import Budget
from corekit.net.addresses import parse_address
from corekit.units import parse_memory_mib
from gpu_scheduler.client.access import KEY_VARIABLE
from gpu_scheduler.daemon.config import SETTINGS, variable_of
from orchgpu.cli.main import cli
from orchgpu.local.system import SCHEDULER_VARIABLE

FOLDER = Path(__file__).resolve().parents[1] / "infra/kubernetes"
Json = dict[str, Any]

COMMANDS: Mapping[str, click.Command] = {
    "ssgmd": gpu_scheduler.daemon.cli.main,
    "gpud": remote_gpu.host.cli.main,
    "orchgpu": cli,
}
#: Variables that the programs or their libraries read.
READ = {
    SCALE_VARIABLE,
    KEY_VARIABLE,
    SCHEDULER_VARIABLE,
    "AWS_DEFAULT_REGION",
    "PGPASSWORD",
    *map(variable_of, SETTINGS),
}
#: Seconds from SIGTERM to the end, by program.
STOPS_WITHIN_S = {
    "ssgmd": Budget().program_stop_s + Budget().handover_s,
    "gpud": Budget().host_drain_s + Budget().worker_cut_s,
    "orchgpu": Budget().drain_s + Budget().program_stop_s,
}
#: Options of ssgmd whose files hold keys: it refuses those that others than their owner can read.
KEY_OPTIONS = {"--master-key", "--keys", "--key-file"}
#: Settings of a pod that give it more of its node.
OF_THE_NODE = ("hostNetwork", "hostPID", "hostIPC")
WORKLOADS = {"StatefulSet", "Deployment", "DaemonSet"}


def settings_of(text: str) -> dict[str, str]:
    """The variables of an env file."""
    return dict(re.findall(r"^([A-Z_]+)=(.*)$", text, re.MULTILINE))


@dataclass
class Manifests:
    """All objects of the base, and the settings that its programs share."""

    objects: list[Json]
    kustomization: Json
    settings: dict[str, str]

    @classmethod
    def read(cls) -> Manifests:
        base = FOLDER / "base"
        kustomization = yaml.safe_load((base / "kustomization.yaml").read_text())
        texts = [(base / name).read_text() for name in kustomization["resources"]]
        objects = [one for text in texts for one in yaml.safe_load_all(text)]
        return cls(objects, kustomization, settings_of((base / "settings.env").read_text()))

    def named(self, kind: str, name: str) -> Json:
        """One object. Raises StopIteration where there is none."""
        return next(
            one for one in self.objects if (one["kind"], one["metadata"]["name"]) == (kind, name)
        )

    @property
    def programs(self) -> list[Program]:
        return [Program(one, self.settings) for one in self.objects if one["kind"] in WORKLOADS]

    def faults(self) -> Iterator[str]:
        """Each disagreement, as a sentence."""
        for one in self.objects:
            if one["kind"] in ("Pod", "Job", "CronJob"):
                yield f"{one['kind']} {one['metadata']['name']}: a job is a lease, never a pod"
        images = {one["name"] for one in self.kustomization["images"]}
        for program in self.programs:
            if program.container["image"] not in images:
                yield f"{program.name}: image {program.container['image']} has no place"
            yield from program.faults()
        yield from self._service_faults()

    def _service_faults(self) -> Iterator[str]:
        service, pods = self.named("Service", "ssgmd"), self.named("StatefulSet", "ssgmd")
        namespace, program = self.kustomization["namespace"], Program(pods, self.settings)
        ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
        if ports != program.ports:
            yield f"the service's ports {ports} are not those of its pods, {program.ports}"
        if service["spec"]["selector"] != pods["spec"]["selector"]["matchLabels"]:
            yield "the service selects other pods"
        domain = f"{pods['spec']['serviceName']}.{namespace}.svc"
        given = [parse_address(one) for one in self.settings[SCHEDULER_VARIABLE].split(",")]
        names = [f"ssgmd-{number}.{domain}" for number in range(pods["spec"]["replicas"])]
        if given != [(name, program.ports["socket"]) for name in names]:
            yield f"{SCHEDULER_VARIABLE} does not name each pod of ssgmd with its port"


@dataclass
class Program:
    """The pods of one workload, with one container each."""

    workload: Json
    settings: Mapping[str, str]
    pod: Json = field(init=False)
    container: Json = field(init=False)

    def __post_init__(self) -> None:
        self.pod = self.workload["spec"]["template"]["spec"]
        [self.container] = self.pod["containers"]

    @property
    def name(self) -> str:
        return str(self.container["command"][0])

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.container["ports"]}

    @property
    def variables(self) -> dict[str, str]:
        """Every variable; one that the cluster fills in has the value of an example."""
        own = {one["name"]: one.get("value", "10.0.0.7") for one in self.container["env"]}
        return {**self.settings, **own}

    @property
    def arguments(self) -> list[str]:
        words = [*self.container["command"][1:], *self.container["args"]]
        return [re.sub(r"\$\((\w+)\)", lambda m: self.variables[m[1]], word) for word in words]

    @property
    def options(self) -> dict[str, str]:
        pairs = (word.partition("=") for word in self.arguments if word.startswith("--"))
        return {name: value for name, _, value in pairs}

    def faults(self) -> Iterator[str]:
        checks = (
            self._command_faults,
            self._port_faults,
            self._probe_faults,
            self._file_faults,
            self._right_faults,
            self._resource_faults,
        )
        for check in checks:
            for fault in check():
                yield f"{self.name}: {fault}"

    def _command_faults(self) -> Iterator[str]:
        try:
            words = self.arguments
        except KeyError as error:
            yield f"variable {error} is not set"
            return
        command = COMMANDS[self.name]
        if self.name == "orchgpu":
            assert isinstance(command, click.Group)
            found = command.get_command(click.Context(command), words.pop(0))
            assert found is not None
            command = found
        try:
            command.make_context(self.name, words)
        except click.UsageError as error:
            yield error.format_message()
        for name in self.settings.keys() | {one["name"] for one in self.container["env"]}:
            if name not in READ and f"$({name})" not in " ".join(self.container["args"]):
                yield f"variable {name} is not used"

    def _port_faults(self) -> Iterator[str]:
        listening = {
            parse_address(self.options[option])[1]
            for option in ("--listen", "--http", "--metrics")
            if option in self.options
        }
        if listening != set(self.ports.values()):
            yield f"it listens on {sorted(listening)}, its ports are {self.ports}"
        for option in ("--listen", "--http"):
            advertised = self.options.get(option.replace("listen", "advertise"))
            if option == "--http":
                advertised = self.options.get("--advertise-http")
            if advertised is not None:
                port = parse_address(self.options[option])[1]
                if parse_address(advertised)[1] != port:
                    yield f"it advertises {advertised}, and listens on port {port}"
        for port in self.container["ports"]:
            if port.get("hostPort", port["containerPort"]) != port["containerPort"]:
                yield f"its port {port['name']} is another one of the node"

    def _probe_faults(self) -> Iterator[str]:
        for probe in ("readinessProbe", "livenessProbe"):
            get = self.container[probe]["httpGet"]
            if get["port"] not in self.ports:
                yield f"{probe}: there is no port {get['port']}"
            if get["path"] != "/healthz":
                yield f"{probe}: {get['path']} is not served by every replica that lives"
            is_tls = get["port"] == "http" and "--tls-cert" in self.options
            if (get.get("scheme", "HTTP") == "HTTPS") is not is_tls:
                yield f"{probe}: its port speaks {'HTTPS' if is_tls else 'HTTP'}"

    def _file_faults(self) -> Iterator[str]:
        mounts = {one["mountPath"]: one["name"] for one in self.container["volumeMounts"]}
        volumes = {one["name"]: one for one in self.pod["volumes"]}
        if set(mounts.values()) != set(volumes):
            yield f"its mounts {sorted(mounts.values())} are not its volumes {sorted(volumes)}"
            return
        for option, value in self.options.items():
            if not value.startswith("/"):
                continue
            path = Path(value)
            volume = volumes.get(mounts.get(str(path.parent), ""), {})
            secret = volume.get("secret")
            if option == "--state":  # a folder of its own in it is closed to others
                if "emptyDir" not in volume:
                    yield f"{option}: {value} is in no volume that can be written"
            elif secret is None:
                yield f"{option}: {value} is in no volume"
            elif "items" in secret and path.name not in [one["path"] for one in secret["items"]]:
                yield f"{option}: the secret has no {path.name}"
            elif option in KEY_OPTIONS and secret.get("defaultMode", 0o644) & 0o077:
                yield f"{option}: others can read {value}"
            elif option in KEY_OPTIONS and self._context["runAsUser"]:
                yield f"{option}: {value} belongs to root"

    @property
    def _context(self) -> Json:
        found: Json = self.container["securityContext"]
        return found

    def _right_faults(self) -> Iterator[str]:
        for name in OF_THE_NODE:
            if self.pod.get(name):
                yield f"{name} is not needed"
        for volume in self.pod["volumes"]:
            if "hostPath" in volume:
                yield f"volume {volume['name']} is a folder of the node"
        for one in (*self.pod.get("initContainers", ()), self.container):
            context = one["securityContext"]
            if context.get("privileged") or context["allowPrivilegeEscalation"]:
                yield f"container {one['name']} may get more rights"
            if context["capabilities"]["drop"] != ["ALL"]:
                yield f"container {one['name']} keeps capabilities"
        if self._context["capabilities"].get("add") and self.name != "gpud":
            yield "it adds capabilities"
        if self._context["seccompProfile"] != {"type": "RuntimeDefault"}:
            yield "its system calls are not filtered"

    def _resource_faults(self) -> Iterator[str]:
        if self.pod["terminationGracePeriodSeconds"] < STOPS_WITHIN_S[self.name]:
            yield f"it may need {STOPS_WITHIN_S[self.name]:g} s to stop"
        limit_mib = parse_memory_mib(self.container["resources"]["limits"]["memory"] + "B")
        if parse_memory_mib(self.options.get("--memory-mib", "0MiB")) > limit_mib // 2:
            yield f"it lends more than half of {limit_mib} MiB"
