"""The contract of every registered middleware; its own test is its golden file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from corekit.decode import encode
from corekit.errors import AppError, ErrorCode
from corekit.ids import AttemptId, DeviceId, HostId, LeaseId
from corekit.values import replace
from fdl.keys.document import json_schema
from fdl.lint.lint import lint
from fdl.parse import parse
from gpu_scheduler.model import DeviceKind, GrantedLease, Lease, LeaseState, Share
from orchgpu.deploy.files import known_middlewares
from remote_gpu.middleware import find, names, render
from remote_gpu.middleware.base import ServerLease, device_variables
from remote_gpu.middleware.registry import rules_table
from remote_gpu.wire.connection import parse_access
from remote_gpu.wire.variables import RULES, TABLE, client_file, filled_variables
from tests.installs import share_of
from tools import middlewares as generated

GOLDEN = Path(__file__).parent / "golden"
ONE_HOST = tuple(name for name in names() if find(name).one_host)
#: Names that no middleware may set: they load code or change which is found.
LOADERS = ("LD_PRELOAD", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "BASH_ENV", "AWS_PROFILE", "")


def share(host: str, index: int) -> Share:
    about = {"kind": DeviceKind.CUDA, "model": "NVIDIA L4", "memory_mib": 4096}
    name = f"{host}/{index}"
    return share_of(name, host=HostId(host), index=index, compute_limit_pct=50, **about)


def granted(name: str = "builtin") -> GrantedLease:
    """Two devices of one host and, where its client can, one of another in between."""
    shares = (share("gpu-b", 1), share("gpu-a", 0), share("gpu-b", 3))
    lease = Lease(
        id=LeaseId("lease-9"),
        attempt=AttemptId("j1:1"),
        holder=None,
        fence=41,
        state=LeaseState.RESERVED,
        shares=shares[::2] if name in ONE_HOST else shares,
    )
    return GrantedLease(
        lease=lease,
        epoch=2,
        gateways={"gpu-a": "10.0.0.7:4711", "gpu-b": "gpu-b.internal:4712"},
        secrets={"gpu-a": "aa" * 32, "gpu-b": "bb" * 32},
    )


def test_each_middleware_of_this_tree_has_a_golden_file() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(names())


@pytest.mark.parametrize("name", names())
def test_rendered_as_in_its_golden_file(name: str) -> None:
    rendered = {
        "env": render(name, granted(name)),
        "server": encode(
            find(name).server_command(
                ServerLease(fence=41, shares=(share("gpu-b", 1), share("gpu-b", 3)), port=9000)
            )
        ),
    }
    assert rendered == json.loads((GOLDEN / f"{name}.json").read_text())


def test_a_limit_in_tenths_is_rounded_up_for_servers_that_know_whole_percents() -> None:
    eighth = replace(share("gpu-b", 1), compute_guarantee_pct=12.5, compute_limit_pct=12.5)
    variables = device_variables((eighth,))
    assert variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "13"
    assert variables["CUDA_DEVICE_SM_LIMIT"] == "13"


@pytest.mark.parametrize("name", names())
def test_its_connection_opens_a_session(name: str) -> None:
    access = parse_access(render(name, granted(name))["connection"])
    assert [(h.host, d.index) for h, d in access.devices] == [
        ("gpu-b", 1),
        ("gpu-b", 3),
        ("gpu-a", 0),
    ][: len(access.devices)]


@pytest.mark.parametrize("name", names())
def test_its_variables_are_filled_with_loopback_ports_only(name: str) -> None:
    ports = [40001, 40002]
    filled = filled_variables(name, render(name, granted(name))["variables"], ports, "/tmp/f")
    for value in filled.values():
        assert all(ip_address(found).is_loopback for found in re.findall(r"\d+(?:\.\d+){3}", value))
        assert "{" not in value
    if file := client_file(name, 40001):
        assert "/tmp/f" in filled.values()
        assert "40001" in file


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("variable", LOADERS)
def test_its_rules_allow_no_loader_variable(name: str, variable: str) -> None:
    rules = find(name).client
    assert not any(re.fullmatch(grammar, variable) for grammar in rules.variables)
    assert ip_address(rules.address).is_loopback
    assert 1 <= rules.ports <= find(name).server_ports


@pytest.mark.parametrize("name", ONE_HOST)
def test_a_client_of_one_server_gets_no_lease_over_two_hosts(name: str) -> None:
    with pytest.raises(AppError, match="reaches one host") as error:
        render(name, granted())
    assert error.value.code is ErrorCode.INVALID


@pytest.mark.parametrize("name", names())
def test_a_host_without_a_gateway_is_refused(name: str) -> None:
    lease = granted(name)
    advisory = GrantedLease(lease=lease.lease, epoch=2, gateways={}, secrets=lease.secrets)
    with pytest.raises(AppError, match="no gateway"):
        render(name, advisory)


@pytest.mark.parametrize("name", names())
def test_a_definition_may_name_it(name: str) -> None:
    notes = lint(parse(definition(name)), middlewares=known_middlewares())
    assert [note for note in notes if "middleware" in note.path] == []


def definition(name: str) -> str:
    return (
        "functions: {aws: [{lambda: {name: a, init_script: a.sh, input: [{path: inn}],"
        f" output: [{{path: out}}]}}, gpu: {{middleware: {name}}}}}]}}"
    )


def test_crickets_client_is_no_variable_of_the_function() -> None:
    """It ends every process that it is loaded into without its server's address: the runner too."""
    preloaded = definition("cricket").replace(
        "init_script: a.sh", "init_script: a.sh, environment: {Variables: {LD_PRELOAD: /opt/c.so}}"
    )
    notes = lint(parse(preloaded), middlewares=known_middlewares())
    (note,) = [note.message for note in notes if "LD_PRELOAD" in note.path]
    assert note == "loads code into the function's runner and the script"


def test_an_unknown_middleware_is_refused_with_the_known_ones() -> None:
    with pytest.raises(AppError, match="known are builtin, cricket, gvirtus") as error:
        render("nonsense", granted())
    assert error.value.code is ErrorCode.INVALID


def test_generated_files_are_current() -> None:
    """Renew them with `python -m tools.middlewares`."""
    assert TABLE.read_text() == rules_table()
    assert generated.SCHEMA.read_text() == generated.schema()
    page = generated.PAGE.read_text()
    assert page == generated.page(page)
    document: Any = json_schema(names())
    assert document["$defs"]["middlewares"]["examples"] == list(names())
    assert list(RULES) == list(names())


def test_a_server_sees_cuda_devices_by_uuid_and_none_of_a_lease_without_one() -> None:
    cpu = replace(share("h", 0), kind=DeviceKind.CPU)
    assert device_variables((cpu,))["CUDA_VISIBLE_DEVICES"] == ""
    whole = replace(share("h", 0), device=DeviceId("GPU-8a1b"), exclusive=True)
    part = replace(share("h", 1), device=DeviceId("MIG-77"), memory_mib=1024)
    found = device_variables((whole, cpu, part))
    assert found["CUDA_VISIBLE_DEVICES"] == "GPU-8a1b,MIG-77"
    assert found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "1=1024M"
    assert "CUDA_DEVICE_MEMORY_LIMIT_0" not in found


#: A middleware of another package or of a copied tree: one file.
EXAMPLE = """
from remote_gpu.api import ADDRESS, ClientRules, Middleware, ServerCommand, Summary, addresses


class Example(Middleware):
    name = "example"
    one_host = True
    client = ClientRules(variables={"EXAMPLE_SERVER": ADDRESS})
    summary = Summary(programs="examples", image="nothing", server="`exampled`")

    def variables(self, granted):
        (found,) = {address.host for address in addresses(granted)}
        return {"EXAMPLE_SERVER": f"127.0.0.1:{{{found}}}"}

    def server_command(self, lease):
        return ServerCommand(arguments=(str(lease.port),), port=lease.port)


MIDDLEWARE = Example()
"""
#: Everything that a user of it meets: the definition, the host, the package, the function.
USE = f"""
import io, json, pathlib, zipfile
from fdl.lint.lint import lint
from fdl.parse import parse
from orchgpu.deploy.files import known_middlewares
from orchgpu.deploy.package import build
from remote_gpu.middleware import find, names
from remote_gpu.middleware.base import ServerLease
from remote_gpu.wire.variables import read_rules, check_variables

assert "example" in names(), names()
text = {definition("example")!r}
document = parse(text)
notes = lint(document, middlewares=known_middlewares())
assert not [note for note in notes if "middleware" in note.path], notes
assert find("example").server_command(ServerLease(fence=1, shares=(), port=7)).port == 7
pathlib.Path("a.sh").write_text("true")
with zipfile.ZipFile(io.BytesIO(build(document.functions.aws[0], pathlib.Path()).data)) as package:
    rules = read_rules(package.read("remote_gpu/wire/middlewares.json").decode())
check_variables("example", rules["example"], {{"EXAMPLE_SERVER": "127.0.0.1:{{0}}"}})
print(json.dumps(names()))
"""


def test_a_middleware_of_another_package_is_found_by_its_entry_point(tmp_path: Path) -> None:
    (tmp_path / "acme_gpu.py").write_text(EXAMPLE)
    about = tmp_path / "acme_gpu-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-gpu\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[orchgpu.middlewares]\nexample = acme_gpu:MIDDLEWARE\nbroken = acme_gpu:ABSENT\n"
    )
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", USE],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{generated.ROOT}", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == sorted([*names(), "example"])
    assert "acme_gpu:ABSENT cannot be loaded" in found.stderr


def test_a_middleware_is_one_file_in_a_copy_of_the_tree(copied_tree: Path) -> None:
    (copied_tree / "remote_gpu/middleware/plugins/example.py").write_text(EXAMPLE)
    for code in (("-m", "tools.middlewares"), ("-c", USE)):
        found = subprocess.run(
            [sys.executable, "-W", "error", *code],
            cwd=copied_tree,
            env={"PYTHONPATH": str(copied_tree), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
        assert found.returncode == 0, found.stderr
    assert sorted(json.loads(found.stdout)) == sorted([*names(), "example"])
    assert '"example"' in (copied_tree / "fdl/schema.json").read_text()
    assert "| `example` | examples |" in (copied_tree / "docs/how-to/middlewares.md").read_text()
    assert "EXAMPLE_SERVER" in (copied_tree / "remote_gpu/wire/middlewares.json").read_text()


@pytest.fixture
def copied_tree(tmp_path: Path) -> Path:
    """The sources as far as git knows or would add them, without the tests."""
    folders = (
        "corekit",
        "contract",
        "gpu_scheduler",
        "remote_gpu",
        "operations",
        "fdl",
        "orchgpu",
        "tools",
    )
    root = generated.ROOT
    paths = [path for folder in folders for path in (root / folder).rglob("*") if path.is_file()]
    functions = (root / "lambda_functions").rglob("*.py")
    for path in (*paths, *functions, generated.PAGE):
        if "__pycache__" not in path.parts:
            target = tmp_path / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return tmp_path
