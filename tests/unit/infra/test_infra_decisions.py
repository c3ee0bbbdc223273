"""The pure parts of `orchgpu infra`: differences, costs, quotas, parameters, files of machines."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.budget import Budget
from corekit.errors import AppError
from corekit.values import replace
from gpu_scheduler.daemon.access.iam_rules import IamRules
from gpu_scheduler.daemon.access.keys import KeyRole, keys_in
from gpu_scheduler.daemon.access.sources import StoredSecret
from gpu_scheduler.daemon.capacity import declared_devices
from gpu_scheduler.model import DeviceKind
from orchgpu.fleet.core.model import Offers
from orchgpu.fleet.offers import parse_offers
from orchgpu.infra import bundles, changes, quotas
from orchgpu.infra.costs import SCHEDULER_DISK_GIB, Cost, Rates, idle
from orchgpu.infra.deployment import check_values, read_prices
from orchgpu.infra.machine import files
from orchgpu.infra.machine.model import HOST, SCHEDULER, File, Identity, Machine, System
from orchgpu.infra.machine.offers import offers_text
from orchgpu.infra.machine.start import new_system
from orchgpu.infra.model import Change
from orchgpu.infra.template import FILES, Template, read_template

OWN = {"StateBucket": "state", "SchedulerBundle": "a.tar", "HostBundle": "b.tar"}
RATES = Rates(beats=1, polls=4, registry_reads=0.5)
ME = Identity(instance="i-0abc", subnet="subnet-1", private="10.83.0.9", public="3.4.5.6")
SYSTEM = System(
    master="0" * 64,
    keys={},
    ca="CA",
    ca_key="KEY",
    orchestrator="orchestrator.x",
    console="console.x",
    collect="collect.x",
    fleet="fleet.x",
    operator="operator.x",
)


@pytest.fixture(scope="module")
def template() -> Template:
    return read_template()


def machine(kind: str = SCHEDULER, *, gpud: bool = False, public: bool = False) -> Machine:
    return Machine(
        kind=kind,
        stack="lab",
        region="eu-west-1",
        schedulers=("10.83.0.5", "10.83.64.5"),
        state_bucket="state",
        logs="/orchgpu/lab",
        interfaces={"eni-1": "SchedulersA"},
        gpud=gpud,
        public=public,
        hook="drain" if kind == HOST else "",
        table="lab",
        secret="lab/system",
        host_roles=("arn:aws:iam::123456789012:role/lab-hosts",),
    )


# --- differences


def test_a_difference_names_what_is_lost_by_a_replacement() -> None:
    shown = "\n".join(
        changes.lines(
            [
                Change(action="Add", logical="PoolB", kind="AWS::AutoScaling::AutoScalingGroup"),
                Change(
                    action="Modify",
                    logical="Journal",
                    kind="AWS::DynamoDB::Table",
                    physical="lab",
                    replacement="True",
                    properties={"TableName": ("lab", "x" * 80)},
                ),
                Change(action="Remove", logical="WayInGroup", kind="AWS::EC2::SecurityGroup"),
            ]
        )
    )
    first, second, third, fourth = shown.splitlines()
    assert first.startswith("- WayInGroup")
    assert second.endswith("(lab): is replaced; the journal would be another, empty table")
    assert third == f"    TableName: lab → {'x' * 59}…"
    assert fourth.startswith("+ PoolB")


def test_the_summary_counts() -> None:
    one = Change(action="Add", logical="a", kind="b")
    assert changes.summary([one, one]) == "2 to make"
    assert changes.summary([]) == "nothing to change"


def test_settings_that_a_person_did_not_set_are_not_shown() -> None:
    before = {"GpuMax": "4", "HostBundle": "a", "GpuMin": "0"}
    after = {"GpuMax": "8", "HostBundle": "b", "GpuMin": "0", "AlarmEmail": "x"}
    assert list(changes.settings(before, after)) == ["GpuMax: 4 → 8"]


# --- costs


def costs(template: Template, **given: str) -> list[Cost]:
    values = template.values({**OWN, **given}, {})
    return list(idle(template.resources(values), values, read_prices(), RATES))


def usd(template: Template, **given: str) -> float:
    return sum(one.usd_month for one in costs(template, **given))


def test_an_idle_system_costs_at_most_30_usd_a_month(template: Template) -> None:
    assert 20 < usd(template) <= 30
    assert usd(template, Machines="one") < usd(template)
    assert usd(template, GpuMin="1") > usd(template) + 380, "an idle GPU host"


def test_the_rates_are_those_of_the_programs() -> None:
    budget = Budget()
    assert RATES.beats == 1 / budget.leader_beat_s
    assert RATES.polls == 1 / budget.standby_poll_s
    assert RATES.registry_reads == 1 / budget.registry_poll_s


@pytest.mark.parametrize(
    "given",
    [
        {"SchedulerType": "m7g.medium"},
        {"GpuType": "g6e.xlarge", "GpuMin": "1"},
        {"Machines": "one", "SchedulerType": "g4dn.4xlarge"},
    ],
)
def test_a_type_without_a_price_is_named_and_holds_no_plan(
    template: Template, given: dict[str, str]
) -> None:
    lines = [one.what for one in costs(template, **given) if "not known here" in one.what]
    assert len(lines) == 1
    assert usd(template, **given) > 0


def test_disks_are_priced_as_the_template_has_them(template: Template) -> None:
    """A GPU image has no room on the disk of a scheduler without GPU."""
    data = template.content["Resources"]["SchedulerTemplate"]["Properties"]["LaunchTemplateData"]
    [mapping] = data["BlockDeviceMappings"]
    wanted = {"Fn::If": ["OneMachine", {"Ref": "GpuDiskGiB"}, SCHEDULER_DISK_GIB]}
    assert mapping["Ebs"]["VolumeSize"] == wanted
    [small] = [one.what for one in costs(template) if "schedulers" in one.what]
    assert small.endswith(f"and {SCHEDULER_DISK_GIB} GiB")
    [large] = [one.what for one in costs(template, Machines="one") if "schedulers" in one.what]
    assert large.endswith("and 75 GiB")


def test_every_kind_of_resource_is_counted_or_costs_nothing_by_itself(template: Template) -> None:
    counted = {
        "AWS::AutoScaling::AutoScalingGroup",
        "AWS::DynamoDB::Table",
        "AWS::SecretsManager::Secret",
        "AWS::CloudWatch::Alarm",
    }
    free = {  # two budgets and three dashboards of an account; log storage is paid by use
        *("AWS::EC2::VPC", "AWS::EC2::InternetGateway", "AWS::EC2::VPCGatewayAttachment"),
        *("AWS::EC2::Subnet", "AWS::EC2::RouteTable", "AWS::EC2::SubnetRouteTableAssociation"),
        *("AWS::EC2::Route", "AWS::EC2::VPCEndpoint", "AWS::EC2::SecurityGroup"),
        *("AWS::EC2::SecurityGroupIngress", "AWS::EC2::InstanceConnectEndpoint"),
        *("AWS::EC2::NetworkInterface", "AWS::EC2::LaunchTemplate", "AWS::Logs::LogGroup"),
        *("AWS::IAM::ManagedPolicy", "AWS::IAM::Role", "AWS::IAM::InstanceProfile"),
        *("AWS::SNS::Topic", "AWS::Budgets::Budget", "AWS::CloudWatch::Dashboard"),
    }
    resources = template.content["Resources"].values()
    assert {one["Type"] for one in resources} == counted | free
    gateways = [one for one in resources if one["Type"] == "AWS::EC2::VPCEndpoint"]
    assert all("VpcEndpointType" not in one["Properties"] for one in gateways), "gateways are free"


# --- quotas


@pytest.mark.parametrize(
    ("kind", "count"),
    [("g4dn.xlarge", 4), ("g5.2xlarge", 8), ("p4d.24xlarge", 96), ("t3.large", 2), ("g5.odd", 4)],
)
def test_vcpus_of_a_type(kind: str, count: int) -> None:
    assert quotas.vcpus(kind) == count


def needed(template: Template, **given: str) -> dict[str, float]:
    found = quotas.needed(template.values({**OWN, **given}, {}))
    return {one.code: one.needed for one in found}


def test_quotas_are_for_all_hosts_of_both_zones(template: Template) -> None:
    assert needed(template) == {"L-3819A6DF": 32, "L-B99A9384": 100}
    assert needed(template, Machines="one")["L-3819A6DF"] == 16
    mixed = needed(template, OnDemandPercent="50", GpuTypeElse="g5.2xlarge", GpuMax="100")
    assert mixed == {"L-DB2E81BA": 1600, "L-3819A6DF": 1600, "L-B99A9384": 200}
    assert "L-7212CCBC" in needed(template, GpuType="p3.2xlarge")
    assert needed(template, GpuMax="0") == {}


@given(st.integers(0, 50), st.integers(0, 100))
def test_more_hosts_never_need_less(hosts: int, on_demand: int) -> None:
    values = {
        "Machines": "two",
        "GpuType": "g4dn.xlarge",
        "GpuTypeElse": "p3.2xlarge",
        "OnDemandPercent": str(on_demand),
    }
    few = {one.code: one.needed for one in quotas.needed({**values, "GpuMax": str(hosts)})}
    more = {one.code: one.needed for one in quotas.needed({**values, "GpuMax": str(hosts + 1)})}
    assert all(more[code] >= value for code, value in few.items())


# --- parameters and packages


def test_parameters_are_as_given_else_as_before_else_the_default(template: Template) -> None:
    found = template.values({**OWN, "GpuMax": "2"}, {"GpuMax": "9", "GpuMin": "1", "Gone": "x"})
    assert (found["GpuMax"], found["GpuMin"], found["GpuType"]) == ("2", "1", "g4dn.xlarge")
    assert "Gone" not in found, "a parameter of another version"


@pytest.mark.parametrize(
    ("kind", "processor"),
    [
        *(("t4g.micro", "aarch64"), ("t3a.small", "x86_64"), ("g4dn.xlarge", "x86_64")),
        *(("g5.xlarge", "x86_64"), ("g5g.xlarge", "aarch64"), ("c7gn.large", "aarch64")),
    ],
)
def test_the_processor_of_a_type(kind: str, processor: str) -> None:
    assert bundles.architecture(kind) == processor


# --- machines


def texts(found: list[File]) -> dict[str, str]:
    return {file.path: file.text for file in found}


def variables(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def unit_variables(name: str) -> set[str]:
    example = (FILES / "systemd" / f"{name}.env.example").read_text()
    return {line.split("=", 1)[0] for line in example.splitlines() if line[:1].isupper()}


@pytest.mark.parametrize("gpud", [False, True])
def test_every_program_of_a_scheduler_has_the_settings_of_its_unit(*, gpud: bool) -> None:
    given_ = machine(gpud=gpud)
    found = texts(list(files.of_scheduler(given_, ME, "10.83.0.5", SYSTEM, "https://sts")))
    for program in files.programs(given_):
        set_ = variables(found[f"/etc/orchgpu/{program}.env"])
        missing = unit_variables(program) - set(set_)
        assert missing <= {"ORCHGPU_SCHEDULER_KEY"}, (program, missing)
    assert variables(found["/etc/orchgpu/ssgmd.env"])["SSGMD_ADVERTISE"] == "10.83.0.5:4700"


def test_the_rules_of_joining_are_those_that_a_host_signs() -> None:
    found = texts(list(files.of_scheduler(machine(), ME, "10.83.0.5", SYSTEM, "https://sts.x")))
    rules = IamRules.read(tomllib.loads(found["/etc/orchgpu/roles.toml"]), "roles.toml")
    assert rules.sts == ("https://sts.x",)
    host = texts(list(files.of_host(machine(HOST), ME, "pool", "CA")))
    assert f"--join-iam {rules.server} " in host["/etc/orchgpu/gpud.env"]
    assert rules.check_host("arn:aws:sts::123456789012:assumed-role/lab-hosts/i-0abc", "i-0abc")


def test_a_host_drains_before_its_groups_hook_is_completed() -> None:
    found = texts(list(files.of_host(machine(HOST), ME, "pool", "CA")))
    line = found["/etc/systemd/system/gpud.service.d/lifecycle.conf"]
    assert "ExecStopPost=-/usr/bin/aws autoscaling complete-lifecycle-action" in line
    assert "--auto-scaling-group-name pool --lifecycle-hook-name drain" in line
    alone = texts(list(files.of_host(machine(HOST), ME, "", "CA")))
    assert not any("lifecycle" in path for path in alone), "a machine of no group"


def test_functions_outside_reach_the_public_address() -> None:
    for public, address in ((False, "10.83.0.9:4711"), (True, "3.4.5.6:4711")):
        found = texts(list(files.of_host(machine(HOST, public=public), ME, "", "CA")))
        assert variables(found["/etc/orchgpu/gpud.env"])["GPUD_ADVERTISE"] == address


def test_secrets_are_for_root_alone() -> None:
    for file in files.of_scheduler(machine(gpud=True), ME, "10.83.0.5", SYSTEM, "https://sts"):
        keys = ("orchestrator.x", "console.x", "collect.x", "fleet.x")
        secret = any(key in file.text for key in keys)
        assert not secret or file.mode == 0o600


def fleet_machine(**given: Any) -> Machine:
    pools = {"pools": ("lab-gpu-a", "lab-gpu-b"), "gpu_types": ("g4dn.xlarge", "g4dn.2xlarge")}
    fields = {**pools, "gpu_min": 1, "gpu_max": 4, "on_demand_pct": 0, **given}
    return replace(machine(), **fields)


def offered(**given: Any) -> Offers:
    """The offers of a machine, as the fleet reads them; the scheduler reads the same text."""
    found, warnings = parse_offers(offers_text(fleet_machine(**given), read_prices()), "offers")
    assert warnings == ()
    return found


def test_each_group_has_an_offer_and_the_first_one_the_hosts_that_stay() -> None:
    first, second = offered().offers
    assert (first.name, first.group, first.min, first.max) == ("gpu-a", "lab-gpu-a", 1, 4)
    assert (second.name, second.group, second.min, second.max) == ("gpu-b", "lab-gpu-b", 0, 4)
    assert (first.kind, first.model, first.devices) == (DeviceKind.CUDA, "Tesla T4", 1)
    assert (first.memory_mib, first.spot) == (14 * 1024, True)
    assert first.usd_per_h == read_prices().instance_hour["g4dn.2xlarge"]
    assert not offered(on_demand_pct=100).offers[0].spot


def test_an_offer_states_what_every_type_of_its_group_has() -> None:
    mixed = offered(gpu_types=("g5.xlarge", "g4dn.xlarge")).offers[0]
    assert (mixed.model, mixed.memory_mib) == ("", 14 * 1024)
    assert mixed.usd_per_h == read_prices().instance_hour["g5.xlarge"]


def test_a_stack_without_gpu_hosts_has_no_offer(tmp_path: Path) -> None:
    assert offered(gpu_min=0, gpu_max=0).offers == ()


def test_the_scheduler_lets_requests_wait_for_the_hosts_of_the_fleet(tmp_path: Path) -> None:
    file = tmp_path / "offers.yaml"
    file.write_text(offers_text(fleet_machine(), read_prices()))
    devices = declared_devices(file)
    assert len(devices) == 8
    assert {one.model for one in devices} == {"Tesla T4"}
    found = texts(list(files.of_scheduler(fleet_machine(), ME, "10.83.0.5", SYSTEM, "https://x")))
    for program, variable in (
        ("ssgmd", "SSGMD_CAPACITY"),
        ("orchgpu-fleet", "ORCHGPU_FLEET_OFFERS"),
    ):
        assert variables(found[f"/etc/orchgpu/{program}.env"])[variable] == files.OFFERS


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        ({"GpuType": "p3.2xlarge"}, "p3.2xlarge: the fleet does not know .* known: g4dn.xlarge, "),
        ({"GpuTypeElse": "g5.odd"}, "GpuTypeElse=g5.odd"),
        ({"GpuMin": "5"}, "GpuMin 5 must not exceed GpuMax 4"),
    ],
)
def test_hosts_that_the_fleet_could_not_have_are_refused(
    template: Template, given_: dict[str, str], says: str
) -> None:
    values = template.values({**OWN, **given_}, {})
    with pytest.raises(AppError, match=says):
        check_values(values)


def test_every_type_with_devices_has_a_price() -> None:
    prices = read_prices()
    assert prices.gpus.keys() <= prices.instance_hour.keys()


def test_logs_of_every_program_are_followed() -> None:
    names = files.programs(machine())
    found = texts(list(files.of_logs(machine(), ME, names)))
    config = json.loads(found[files.AGENT])["logs"]["logs_collected"]["files"]["collect_list"]
    assert {one["log_stream_name"] for one in config} == {
        f"i-0abc/{name}" for name in (*names, "start")
    }
    assert {one["log_group_name"] for one in config} == {"/orchgpu/lab"}
    for name in names:
        assert (
            f"/var/log/orchgpu/{name}.log"
            in found[f"/etc/systemd/system/{name}.service.d/logs.conf"]
        )


def test_a_new_system_has_a_key_for_each_program_that_the_scheduler_takes() -> None:
    made = new_system("lab")
    source = StoredSecret("secret", lambda: json.dumps(dict(made.keys)).encode())
    source.refresh()
    known = keys_in(source)
    assert known["orchestrator"].role is KeyRole.REQUESTER
    assert known["operator"].role is KeyRole.OPERATOR
    assert made.operator.startswith("operator.")
    assert len(bytes.fromhex(made.master)) == 32
    assert made.ca.startswith("-----BEGIN CERTIFICATE-----")


def test_the_program_that_installs_needs_no_index_and_the_python_of_the_wheels() -> None:
    text = (FILES / "cloudformation/install.sh").read_text()
    assert "--no-index" in text
    assert f"python{bundles.PYTHON} -m venv /opt/orchgpu" in text
