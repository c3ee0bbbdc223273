"""The containers of infra/kubernetes run as their pods would: user, capabilities, files, addresses.

Each pod is a network namespace with the mounts of its secrets; its program is started with the
manifest's words and variables. Kubernetes itself is not there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gpu_scheduler.client.access import CA_VARIABLE, KEY_VARIABLE
from remote_gpu.isolation.bind_mounts import closed_above
from tests.kubernetes_manifests import Manifests, Program
from tests.namespaces import Machine, machines, why_not
from tests.postgres_server import postgres_server

BIN = Path(sys.executable).parent
WITHIN_S = 180.0
LACKS = why_not()
pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(400),
    pytest.mark.skipif(LACKS is not None, reason=f"NOT TESTED: {LACKS}"),
]

Secrets = Mapping[str, Mapping[str, str]]


def _shell(folder: Path, script: str) -> None:
    subprocess.run(["bash", "-euc", script], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def secrets(tmp_path: Path) -> Secrets:
    """The secrets of the page, made by its commands."""
    _shell(
        tmp_path,
        f"""
        openssl rand -hex 32 > master.key
        {BIN}/ssgmd --keys keys.json keys add orchestrator --role requester > orchestrator.key
        {BIN}/ssgmd --keys keys.json keys add gpud --role host > gpud.key
        openssl req -x509 -newkey ed25519 -noenc -subj /CN=ca -keyout ca.key -out ca.crt
        openssl req -newkey ed25519 -noenc -subj /CN=ssgmd -keyout tls.key -out tls.csr
        echo 'subjectAltName=DNS:*.ssgmd.orchgpu.svc' > names
        openssl x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -extfile names \\
            -out tls.crt
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj /CN=gpud \\
            -keyout gpud.key.pem -out gpud.crt
        """,
    )

    def of(*files: str) -> dict[str, str]:
        pairs = (file.rpartition("=") for file in files)
        return {key or name: (tmp_path / name).read_text() for key, _, name in pairs}

    return {
        "ssgmd": of("master.key", "keys.json"),
        "ssgmd-tls": of("tls.crt", "tls.key", "ca.crt"),
        "gpud-tls": of("tls.crt=gpud.crt", "tls.key=gpud.key.pem"),
        "orchestrator": of("key=orchestrator.key"),
        "gpud": of("key=gpud.key"),
    }


class Pod:
    """One pod of a program in a namespace; its settings are those of the manifests."""

    def __init__(self, machine: Machine, program: Program, secrets: Secrets, **fields: str) -> None:
        self.machine, self.program = machine, program
        self._fields, self._secrets = fields, secrets

    def mount(self, hosts: str) -> None:
        """Its volumes, and the names that the cluster's DNS would have."""
        volumes = {one["name"]: one for one in self.program.pod["volumes"]}
        script = "mount -t tmpfs tmpfs /run\nmount -t tmpfs tmpfs /var/lib\nmkdir -p /run/secrets\n"
        if (closed := closed_above(Path(sys.base_prefix))) is not None:  # open in an image
            script += f"mkdir /run/base\nmount --bind {sys.base_prefix} /run/base\n"
            script += f"mount -t tmpfs -o mode=755 tmpfs {closed}\nmkdir -p {sys.base_prefix}\n"
            script += f"mount --move /run/base {sys.base_prefix}\n"
        script += f"printf '%s' '{hosts}' > /run/hosts\nmount --bind /run/hosts /etc/hosts\n"
        for mount in self.program.container["volumeMounts"]:
            volume, path = volumes[mount["name"]], mount["mountPath"]
            script += f"mkdir -p {path}\n"
            secret = volume.get("secret")
            content = {} if secret is None else self._secrets[secret["secretName"]]
            wanted = [one["key"] for one in secret.get("items", ())] if secret else []
            for name, text in content.items():
                if not wanted or name in wanted:
                    script += f"cat > {path}/{name} <<'END'\n{text}END\n"
                    script += f"chmod {secret.get('defaultMode', 0o644):o} {path}/{name}\n"
        self.machine.must("bash", "-euc", script)
        for one in self.program.pod.get("initContainers", ()):
            self.machine.must(*one["command"])

    def start(self, log: Path) -> subprocess.Popen[bytes]:
        """Start its program with the user, the capabilities and the words of its manifest."""
        context = self.program.container["securityContext"]
        added = [f"+{one.lower()}" for one in context["capabilities"].get("add", ())]
        kept = ",".join(["-all", *added])
        variables = self._variables()
        words = [*self.program.container["command"], *self.program.container["args"]]
        words = [re.sub(r"\$\((\w+)\)", lambda m: variables[m[1]], word) for word in words]
        user = str(context["runAsUser"])
        command = ["setpriv", f"--bounding-set={kept}", "--inh-caps=-all", "--no-new-privs"]
        command += ["--clear-groups", "--reuid", user, "--regid", user, str(BIN / words[0])]
        with log.open("wb") as file:
            return self.machine.start([*command, *words[1:]], variables, stdout=file, stderr=file)

    def _variables(self) -> dict[str, str]:
        found = dict(self.program.settings)
        for one in self.program.container["env"]:
            source = one["valueFrom"]
            if "fieldRef" in source:
                found[one["name"]] = self._fields[one["name"]]
            elif (secret := source["secretKeyRef"])["name"] in self._secrets:
                found[one["name"]] = self._secrets[secret["name"]][secret["key"]].strip()
        return found

    def health(self) -> dict[str, object]:
        """The answer to its readiness probe; {} while there is none."""
        get = self.program.container["readinessProbe"]["httpGet"]
        scheme = get.get("scheme", "HTTP").lower()
        port = self.program.ports[get["port"]]
        url = f"{scheme}://{self.machine.address}:{port}{get['path']}"
        command = self.machine.command("curl", "-sk", "--max-time", "5", url)
        done = subprocess.run(command, capture_output=True, check=False)
        answer: dict[str, object] = json.loads(done.stdout) if done.returncode == 0 else {}
        return answer


@contextlib.contextmanager
def pods(manifests: Manifests, secrets: Secrets, logs: Path) -> Iterator[dict[str, Pod]]:
    """Both schedulers and one host."""
    programs = {program.name: program for program in manifests.programs}
    with machines("cluster", "ssgmd-0", "ssgmd-1", "node-a") as found:
        hosts = "127.0.0.1 localhost\n" + "".join(
            f"{found[name].address} {name}.ssgmd.orchgpu.svc\n" for name in ("ssgmd-0", "ssgmd-1")
        )
        made = {
            name: Pod(
                found[name], programs["ssgmd"], secrets, POD_NAME=name, POD_NAMESPACE="orchgpu"
            )
            for name in ("ssgmd-0", "ssgmd-1")
        }
        node = found["node-a"]
        fields = {"NODE_NAME": node.name, "NODE_IP": node.address}
        made[node.name] = Pod(node, programs["gpud"], secrets, **fields)
        running = []
        try:
            for name, pod in made.items():
                pod.mount(hosts)
                running.append(pod.start(logs / f"{name}.log"))
            yield made
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait(WITHIN_S)


def _hosts(pod: Pod, secrets: Secrets) -> list[dict[str, object]]:
    """The hosts of the scheduler, by `ssgm` in the pod."""
    key = secrets["orchestrator"]["key"].strip()
    addresses = pod.program.settings["ORCHGPU_SCHEDULER"]
    command = [str(BIN / "ssgm"), "hosts", "--json", "--scheduler", addresses]
    environment = {KEY_VARIABLE: key, CA_VARIABLE: "/run/secrets/ssgmd-tls/ca.crt"}
    done = subprocess.run(
        pod.machine.command("env", "-C", os.getcwd(), *command),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    found: list[dict[str, object]] = json.loads(done.stdout).get("hosts", []) if done.stdout else []
    return found


def test_the_pods_serve_with_their_users_rights_and_files(tmp_path: Path, secrets: Secrets) -> None:
    manifests = Manifests.read()
    with postgres_server() as server:
        server.folder.chmod(0o711)  # root without capabilities passes no folder of another user
        manifests.settings["SSGMD_LOG"] = server.url("pods")
        with pods(manifests, secrets, tmp_path) as made:
            ends_s = time.monotonic() + WITHIN_S
            hosts: list[dict[str, object]] = []
            while not (hosts and all(pod.health().get("ok") for pod in made.values())):
                assert time.monotonic() < ends_s, _logs(tmp_path)
                time.sleep(0.1)
                hosts = _hosts(made["ssgmd-0"], secrets)
            roles = {made[name].health()["role"] for name in ("ssgmd-0", "ssgmd-1")}
            assert roles == {"leader", "standby"}
            [host] = hosts
            assert host["host"] == "node-a"
            isolation = [
                json.loads(line)
                for line in (tmp_path / "node-a.log").read_text().splitlines()
                if '"isolation"' in line
            ]
            assert {"a user per lease", "seccomp"} <= set(isolation[0]["mechanisms"]), isolation


def _logs(folder: Path) -> str:
    return "\n".join(f"{path.name}: {path.read_text()[-3000:]}" for path in folder.glob("*.log"))
