"""The manifests for Kubernetes agree with our programs, and are valid by its own schemas."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.kubernetes_manifests import FOLDER, Manifests

#: The first one with claims of devices in `resource.k8s.io/v1`.
VERSION = "1.34"
LAYERS = ("base", "claims")
Plant = Callable[[Manifests], object]

validate = pytest.mark.skipif(
    importlib.util.find_spec("kubernetes_validate") is None, reason="needs kubernetes-validate"
)
kustomize = pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")


def _container(manifests: Manifests, kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = manifests.named(kind, name)["spec"]["template"]["spec"]["containers"][0]
    return found


def _gpud(manifests: Manifests) -> dict[str, Any]:
    return _container(manifests, "DaemonSet", "gpud")


def _ssgmd(manifests: Manifests) -> dict[str, Any]:
    return _container(manifests, "StatefulSet", "ssgmd")


def _with(container: dict[str, Any], old: str, new: str) -> None:
    assert old in container["args"]
    container["args"] = [new if word == old else word for word in container["args"]]


def test_the_manifests_agree_with_the_programs() -> None:
    assert list(Manifests.read().faults()) == []


PLANTED: dict[str, tuple[Plant, str]] = {
    "option": (
        lambda m: _gpud(m)["args"].append("--gpus=all"),
        "gpud: No such option '--gpus'",
    ),
    "value": (
        lambda m: _with(_ssgmd(m), "--standby", "--standby=yes"),
        "ssgmd: Option '--standby' does not take a value",
    ),
    "required option": (
        lambda m: _gpud(m)["args"].remove("--host-id=$(NODE_NAME)"),
        "gpud: Missing option '--host-id'",
    ),
    "variable": (
        lambda m: _with(_gpud(m), "--host-id=$(NODE_NAME)", "--host-id=$(HOST)"),
        "gpud: variable 'HOST' is not set",
    ),
    "unused variable": (
        lambda m: m.settings.update(SSGMD_LOGS="s3://b/n"),
        "ssgmd: variable SSGMD_LOGS is not used",
    ),
    "port": (
        lambda m: _with(_gpud(m), "--metrics=0.0.0.0:4712", "--metrics=0.0.0.0:4713"),
        "gpud: it listens on [4711, 4713]",
    ),
    "advertised port": (
        lambda m: _with(_gpud(m), "--advertise=$(NODE_IP):4711", "--advertise=$(NODE_IP):4700"),
        "gpud: it advertises 10.0.0.7:4700",
    ),
    "service": (
        lambda m: m.named("Service", "ssgmd")["spec"]["ports"].pop(),
        "the service's ports",
    ),
    "replicas": (
        lambda m: m.named("StatefulSet", "ssgmd")["spec"].update(replicas=3),
        "ORCHGPU_SCHEDULER does not name each pod",
    ),
    "probe of a standby": (
        lambda m: _ssgmd(m)["readinessProbe"]["httpGet"].update(path="/readyz"),
        "ssgmd: readinessProbe: /readyz is not served",
    ),
    "probe without TLS": (
        lambda m: _ssgmd(m)["livenessProbe"]["httpGet"].pop("scheme"),
        "ssgmd: livenessProbe: its port speaks HTTPS",
    ),
    "file": (
        lambda m: _with(
            _ssgmd(m), "--keys=/run/secrets/ssgmd/keys.json", "--keys=/etc/ssgmd/keys.json"
        ),
        "ssgmd: --keys: /etc/ssgmd/keys.json is in no volume",
    ),
    "mode": (
        lambda m: m.named("StatefulSet", "ssgmd")["spec"]["template"]["spec"]["volumes"][1][
            "secret"
        ].update(defaultMode=0o440),
        "ssgmd: --master-key: others can read",
    ),
    "user": (
        lambda m: _ssgmd(m)["securityContext"].update(runAsUser=65532),
        "ssgmd: --master-key: /run/secrets/ssgmd/master.key belongs to root",
    ),
    "rights": (
        lambda m: _gpud(m)["securityContext"].update(privileged=True),
        "gpud: container gpud may get more rights",
    ),
    "time to stop": (
        lambda m: m.named("DaemonSet", "gpud")["spec"]["template"]["spec"].update(
            terminationGracePeriodSeconds=30
        ),
        "gpud: it may need 130 s to stop",
    ),
    "memory": (
        lambda m: _with(_gpud(m), "--memory-mib=4GiB", "--memory-mib=12GiB"),
        "gpud: it lends more than half of 16384 MiB",
    ),
    "image": (
        lambda m: _gpud(m).update(image="orchgpu-gpu"),
        "gpud: image orchgpu-gpu has no place",
    ),
    "pod per job": (
        lambda m: m.objects.append({"kind": "Job", "metadata": {"name": "detect"}}),
        "Job detect: a job is a lease, never a pod",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    plant, sentence = PLANTED[name]
    manifests = Manifests.read()
    plant(manifests)
    assert any(fault.startswith(sentence) for fault in manifests.faults())


def test_the_images_are_the_targets_of_the_containerfile() -> None:
    text = (FOLDER / "Containerfile").read_text()
    targets = re.findall(r"--target (\w+) -t (\S+)", text)
    names = {one["name"] for one in Manifests.read().kustomization["images"]}
    assert {image for _, image in targets} == names
    stages = re.findall(r"^FROM \S+ AS (\w+)$", text, re.MULTILINE)
    assert {stage for stage, _ in targets} <= set(stages)


def _checked(document: dict[str, Any]) -> None:
    module = importlib.import_module("kubernetes_validate")
    module.validate(document, VERSION, strict=True)


@validate
def test_every_object_is_valid_by_the_schemas_of_kubernetes() -> None:
    documents = Manifests.read().objects
    documents += yaml.safe_load_all((FOLDER / "claims/claim.yaml").read_text())
    for document in documents:
        _checked(document)
    documents[0]["metadata"]["lables"] = {}
    error = importlib.import_module("kubernetes_validate").ValidationError
    with pytest.raises(error, match="lables"):
        _checked(documents[0])


@kustomize
@pytest.mark.parametrize("layer", LAYERS)
def test_kustomize_builds_it(layer: str) -> None:
    """The layer with claims asks for no number of devices, and its objects are in one namespace."""
    command = ["kubectl", "kustomize", str(FOLDER / layer)]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    objects = {one["kind"]: one for one in yaml.safe_load_all(text)}
    assert {one["metadata"].get("namespace", "orchgpu") for one in objects.values()} == {"orchgpu"}
    pod = objects["DaemonSet"]["spec"]["template"]["spec"]
    resources = pod["containers"][0]["resources"]
    assert ("nvidia.com/gpu" in resources["limits"]) is (layer == "base")
    if layer == "claims":
        assert resources["claims"] == [{"name": pod["resourceClaims"][0]["name"]}]
        template = pod["resourceClaims"][0]["resourceClaimTemplateName"]
        assert objects["ResourceClaimTemplate"]["metadata"]["name"] == template
    if importlib.util.find_spec("kubernetes_validate") is not None:
        for document in objects.values():
            _checked(document)
