"""Weather of Lambda and IAM: fresh roles, states of functions, throttling, events that expire."""

from __future__ import annotations

from local_cloud.model.errors import CloudError
from local_cloud.model.functions.function import InvokeConfig
from local_cloud.model.functions.functions import FunctionSettings, LambdaFunction
from local_cloud.model.functions.states import FunctionStates
from local_cloud.model.roles import Role
from local_cloud.model.weather import Draws, Weather
from tests.unit.local_cloud.weather.weather_world import OPEN, TRUST, World, refusal

OLD_ROLE = "arn:aws:iam::000000000000:role/old"
IN_VPC = {"VpcConfig": {"SubnetIds": ["subnet-1"]}}


def _create(world: World, now_s: float, role: str = "", *, vpc: bool = False) -> LambdaFunction:
    settings = FunctionSettings(name="f", given={"Role": role, **(IN_VPC if vpc else {})})
    return world.cloud.functions.create(now_s, settings)


def test_a_fresh_role_cannot_be_assumed_and_one_that_is_unknown_here_is_accepted() -> None:
    world = World(Weather(role_s=(5.0, 5.0), role_policy_s=(5.0, 5.0)))
    role = world.role()
    assert refusal(lambda: _create(world, 4.9, role)) == (
        "InvalidParameterValueException",
        400,
        "The role defined for the function cannot be assumed by Lambda.",
    )
    _create(world, 5.0, role)
    world.cloud.functions.delete("f")
    world.cloud.roles.delete("role")
    world.cloud.roles.create(100.0, Role(name="role", trust=TRUST))
    assert refusal(lambda: _create(world, 104.0, role))[0] == "InvalidParameterValueException"
    _create(world, 104.0, "arn:aws:iam::000000000000:role/any", vpc=True)


def test_calls_are_throttled_by_lambda_and_those_for_a_vpc_by_ec2() -> None:
    world = World(Weather(control_throttle_rate=1.0))
    assert refusal(lambda: _create(world, 0.0))[:2] == ("TooManyRequestsException", 429)
    world = World(Weather(network_throttle_rate=1.0))
    found = refusal(lambda: _create(world, 0.0, vpc=True))
    assert found[0] == "InvalidParameterValueException"
    assert found[2].startswith("Your request has been throttled by EC2, please make sure")
    _create(world, 0.0)
    functions = world.cloud.functions
    functions.update(0.0, "f", {"Timeout": 9})
    assert "EC2" in refusal(lambda: functions.update(0.0, "f", IN_VPC))[2]


def test_a_function_in_a_vpc_needs_the_roles_policy_in_force() -> None:
    world = World(Weather(role_policy_s=(5.0, 5.0)))
    role = world.role()
    world.cloud.roles.put_policy(1.0, "role", "p", OPEN)
    found = refusal(lambda: _create(world, 5.9, role, vpc=True))
    assert "does not have permissions to call CreateNetworkInterface" in found[2]
    _create(world, 6.0, role, vpc=True)


def test_a_fresh_role_gets_no_grant_of_the_variables_key() -> None:
    """Lambda, KMS and SQS learn of the role each at its own time: the later one decides."""
    world = World(Weather(role_s=(0.1, 10.0), seed="4"))
    role, functions = world.role(), world.cloud.functions
    told: list[str] = []
    for tenth in range(101):
        try:
            settings = FunctionSettings(
                name="f", given={"Role": role, "Environment": {"Variables": {"A": "1"}}}
            )
            functions.create(tenth / 10, settings)
            break
        except CloudError as error:
            told.append(f"{error.code}: {error.message}")
    assert any("cannot be assumed by Lambda" in text for text in told)
    assert told[-1].startswith("InvalidParameterValueException: Lambda was unable to configure")
    assert "the KMS key is invalid for CreateGrant" in told[-1]
    assert told[-1].endswith("ARN does not refer to a valid principal")
    functions.create(0.1, FunctionSettings(name="g", given={"Role": OLD_ROLE}))


def test_a_destination_needs_a_policy_that_allows_it() -> None:
    world = World(Weather(role_policy_s=(5.0, 5.0)))
    role, queue = world.role(), world.queue()
    function = _create(world, 0.0, role)
    config = InvokeConfig(on_failure=queue.arn)

    def configure(now_s: float) -> None:
        world.cloud.functions.configure_events(now_s, function, config)

    world.cloud.roles.put_policy(0.0, "role", "p", OPEN.replace('"*"', '"s3:GetObject"', 1))
    assert "does not have permissions to call SendMessage on" in refusal(lambda: configure(9.0))[2]
    world.cloud.roles.put_policy(10.0, "role", "p", OPEN)
    refusal(lambda: configure(14.9))
    configure(15.0)
    assert function.invocations.config == config


def test_calls_of_a_pending_function_fail() -> None:
    world = World(Weather(pending_s=(10.0, 10.0), scale=0.5))
    function, functions = _create(world, 0.0), world.cloud.functions
    assert functions.states.state(4.9, "f") == "Pending"
    for call in (
        lambda: functions.update(4.9, "f", {"Timeout": 9}),
        lambda: functions.add_statement(4.9, function, {"Sid": "x"}),
        lambda: functions.configure_events(4.9, function, InvokeConfig()),
        lambda: functions.check_invoke(4.9, function),
    ):
        code, status, message = refusal(call)
        assert (code, status) == ("ResourceConflictException", 409)
        assert message.endswith("in the following state: Pending")
    assert functions.states.state(5.0, "f") == "Active"
    functions.update(5.0, "f", {"Timeout": 9})


def test_while_an_update_is_in_progress_the_previous_settings_run() -> None:
    world = World(Weather(update_s=(10.0, 10.0)))
    function, functions = _create(world, 0.0), world.cloud.functions
    functions.update(1.0, "f", {"Timeout": 9})
    assert functions.states.updating(10.9, "f")
    assert functions.running(10.9, function).settings.timeout_s == 3
    conflict = refusal(lambda: functions.update(10.9, "f", {"Timeout": 10}))
    assert "An update is in progress for resource: arn:aws:lambda" in conflict[2]
    assert functions.running(11.0, function).settings.timeout_s == 9
    functions.update(11.0, "f", {"Timeout": 10})


def test_an_idle_function_in_a_vpc_alone_becomes_inactive_and_pending_by_its_next_call() -> None:
    world = World(Weather(inactive_after_s=1.0))
    _create(world, 0.0)
    assert world.cloud.functions.states.state(1e6, "f") == "Active"
    world = World(Weather(vpc_pending_s=(30.0, 30.0), inactive_after_s=100.0))
    function, functions = _create(world, 0.0, vpc=True), world.cloud.functions
    functions.check_invoke(31.0, function)
    assert functions.states.state(131.0, "f") == "Active"
    assert functions.states.state(131.1, "f") == "Inactive"
    assert refusal(lambda: functions.check_invoke(200.0, function))[:2] == (
        "ResourceNotReadyException",
        502,
    )
    assert functions.states.state(201.0, "f") == "Pending"
    functions.check_invoke(230.0, function)


def test_an_event_during_throttling_waits_and_then_expires_into_its_destination() -> None:
    world = World(Weather(throttle_pause_s=(10.0, 10.0), throttle_s=(500.0, 500.0)))
    queue, function = world.queue(), _create(world, 0.0)
    events = function.invocations
    events.config = InvokeConfig(event_age_s_max=60.0, on_failure=queue.arn)
    world.cloud.functions.concurrency.busy(0.0)
    assert refusal(lambda: world.cloud.functions.check_invoke(11.0, function))[1] == 429
    world.cloud.invoke_later(11.0, function.arn, "{}")
    tries = []
    while (due_s := events.next_due_at_s()) is not None:
        tries.append(due_s)
        starting, records = events.start_due(due_s)
        assert starting == []
        for record in records:
            world.cloud.deliver(due_s, record)
    assert tries == [11.0, 12.0, 14.0, 18.0, 26.0, 42.0, 71.001]
    (message,) = queue.messages()
    assert '"condition": "EventAgeExceeded", "approximateInvokeCount": 0' in message.body


def test_an_event_of_a_pending_function_starts_when_it_is_active() -> None:
    world = World(Weather(pending_s=(50.0, 50.0), scale=0.1))
    function = _create(world, 0.0)
    world.cloud.invoke_later(0.0, function.arn, "{}")
    tried_s: list[float] = []
    started = 0
    while not started:
        due_s = function.invocations.next_due_at_s()
        assert due_s is not None
        tried_s.append(round(due_s, 3))
        started = len(function.invocations.start_due(due_s)[0])
    assert tried_s == [0.0, 0.1, 0.3, 0.7, 1.5, 3.1, 6.3]


def test_a_new_permission_is_unknown_to_s3_for_a_while() -> None:
    world = World(Weather(permission_s=(5.0, 5.0)))
    function, functions = _create(world, 0.0), world.cloud.functions
    functions.add_statement(0.0, function, {"Sid": "one"})
    functions.add_statement(10.0, function, {"Sid": "two"})
    assert "two" in function.policy
    assert "one" in functions.policy_in_force(14.0, function)
    assert "two" not in functions.policy_in_force(14.0, function)
    assert "two" in functions.policy_in_force(15.0, function)


def test_throttled_times_alternate_with_others() -> None:
    world = World(Weather(throttle_pause_s=(10.0, 20.0), throttle_s=(5.0, 5.0)))
    busy = [world.cloud.functions.concurrency.busy(float(at_s)) for at_s in range(1000)]
    assert 0.1 < sum(busy) / len(busy) < 0.5
    assert not busy[0]


def test_a_function_of_an_earlier_run_of_the_cloud_is_active() -> None:
    states = FunctionStates[str](Draws(Weather(pending_s=(10.0, 10.0))))
    states.check_invoke(0.0, "old")
    assert states.state(0.0, "old") == "Active"
