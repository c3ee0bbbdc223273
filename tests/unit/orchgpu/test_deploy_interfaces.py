"""Defect 10: a role that is removed before Lambda removed its network interfaces leaves them."""

from __future__ import annotations

from typing import Any

import pytest

from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from fdl.parse import parse
from fdl.plan.plan import Action, Observed, Step, frees_interfaces, removal
from fdl.plan.resources import Ledger, Role, key_of
from fdl.plan.roles import role_of
from orchgpu.adapters.aws.deploy.roles import Interfaces
from tests.unit.orchgpu.test_deploy_roles import AWS, BLAST, PLAIN
from tests.unit.orchgpu.test_deploy_settling import FUNCTION, Cloud

UUID = "0a1b2c3d-0000-4000-8000-0123456789ab"


def role(text: str) -> Role:
    return role_of(parse(text).functions.aws[0], AWS)


def interface(description: str, subnet: str = "s-1", group: str = "g-1") -> dict[str, Any]:
    return {
        "NetworkInterfaceId": "eni-1",
        "Description": description,
        "SubnetId": subnet,
        "Groups": [{"GroupId": group}],
    }


class World:
    """AWS's answers about interfaces, one for each look, and the functions in its networks."""

    def __init__(self, *looks: list[dict[str, Any]], functions: tuple[str, ...] = ()) -> None:
        self.ec2, self.lambda_ = Cloud("ec2"), Cloud("lambda")
        for found in looks:
            self.ec2.answers("describe_network_interfaces", {"NetworkInterfaces": found})
        network = {"SubnetIds": ["s-1"], "SecurityGroupIds": ["g-1"]}
        listed = [{"FunctionName": name, "VpcConfig": network} for name in functions]
        for _ in looks:
            self.lambda_.answers("list_functions", {"Functions": listed})
        self.notices: list[str] = []
        self.interfaces = Interfaces(
            lambda: self.ec2.client,
            self.lambda_.client,
            sleep=self.ec2.clock.sleep,
            monotonic=self.ec2.clock.monotonic,
        )

    def wait(self) -> float:
        self.interfaces.wait_gone(role(BLAST), self.notices.append)
        return self.ec2.clock.now_s


def test_the_role_waits_for_its_interfaces_with_progress() -> None:
    ours = interface(f"AWS Lambda VPC ENI-blast-{UUID}")
    world = World([ours], [ours], [])
    assert world.wait() == 30.0
    assert world.notices[1] == (
        "Lambda removes 1 network interface(s) of blast: 15 s of at most 2400 s"
    )


def test_the_wait_is_bounded_and_the_role_stays() -> None:
    ours = interface(f"AWS Lambda VPC ENI-blast-{UUID}")
    with pytest.raises(AppError, match=r"eni-1.*role blast-eu-west-1, which stays") as caught:
        World(*[[ours]] * 200).wait()
    assert caught.value.code is ErrorCode.TIMEOUT


def test_interfaces_that_stay_for_others_are_not_waited_for() -> None:
    """Functions with the same subnet and security groups share an interface."""
    ours = interface(f"AWS Lambda VPC ENI-blast-{UUID}")
    assert World([ours], functions=("another",)).wait() == 0.0
    assert World([interface(f"AWS Lambda VPC ENI-blast-two-{UUID}")]).wait() == 0.0


def test_only_steps_that_take_the_rights_away_wait() -> None:
    with_rights, without = role(BLAST), replace(role(PLAIN), name=role(BLAST).name)
    assert frees_interfaces(Step(action=Action.DELETE, resource=with_rights))
    assert frees_interfaces(Step(action=Action.UPDATE, resource=without, before=with_rights))
    assert not frees_interfaces(Step(action=Action.DELETE, resource=without))
    assert not frees_interfaces(Step(action=Action.CREATE, resource=with_rights))
    assert not frees_interfaces(Step(action=Action.UPDATE, resource=with_rights, before=without))


def test_the_role_goes_last_so_that_nothing_waits_for_it() -> None:
    made = role(BLAST)
    keys = (key_of(made), key_of(FUNCTION))
    ledger = Ledger(name="blast", bucket=AWS.state_bucket, created=keys)
    observed = Observed(
        resources={key_of(made): made, key_of(FUNCTION): FUNCTION}, ledgers={"blast": ledger}
    )
    steps = [step.resource.kind for step in removal(["blast"], observed, AWS).steps]
    assert steps == ["function", "role", "ledger"]
