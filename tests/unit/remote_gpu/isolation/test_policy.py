"""The isolation of a lease, decided from what a machine has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_gpu.isolation.apply import permit
from remote_gpu.isolation.policy import IsolationPolicy, IsolationSetting, MachineFacts, decide
from remote_gpu.isolation.seccomp import Permit

ALL = MachineFacts(
    users=True, mounts=True, pid_namespace=True, network=True, landlock=7, seccomp=True
)
ORDINARY = MachineFacts(
    pid_namespace=True, user_namespace=True, network=True, landlock=7, seccomp=True
)


@pytest.mark.parametrize("facts", [ALL, ORDINARY])
def test_every_available_mechanism_is_used(facts: MachineFacts) -> None:
    policy = decide(facts, IsolationSetting.AUTO, programs=True, kernels=True)
    assert (policy.kernels_refused, policy.programs_refused) == ("", "")
    assert (policy.execute, policy.link, policy.seccomp, policy.landlock) == (True, True, True, 7)
    assert policy.users == facts.users
    assert "seccomp" in policy.mechanisms


@pytest.mark.parametrize(
    ("facts", "kernels", "programs"),
    [
        (MachineFacts(), False, False),
        (MachineFacts(landlock=7), False, False),  # no system call is refused
        (
            MachineFacts(seccomp=True, pid_namespace=True, user_namespace=True),
            False,
            False,
        ),  # nor files kept apart
        (MachineFacts(seccomp=True, landlock=7), False, False),  # a process could outlive its lease
        (MachineFacts(seccomp=True, landlock=1, cgroup="/c"), False, False),  # or signal gpud
        (MachineFacts(seccomp=True, landlock=6, cgroup="/c"), True, True),
        (MachineFacts(seccomp=True, landlock=1, pid_namespace=True), True, True),
        (MachineFacts(seccomp=True, users=True), True, True),
        (MachineFacts(seccomp=True, users=True, unreached=("/root",)), False, False),
        (MachineFacts(seccomp=True, users=True, mounts=True, unreached=("/root",)), True, True),
    ],
)
def test_too_few_mechanisms_refuse_kernels_and_programs(
    facts: MachineFacts, kernels: bool, programs: bool
) -> None:
    policy = decide(facts, IsolationSetting.AUTO, programs=True, kernels=True)
    assert (not policy.kernels_refused, not policy.programs_refused) == (kernels, programs)
    assert (policy.link, policy.execute) == (kernels, programs)


def test_a_host_without_a_compiler_need_not_end_child_processes() -> None:
    facts = MachineFacts(seccomp=True, landlock=1)
    policy = decide(facts, IsolationSetting.AUTO, programs=False, kernels=False)
    assert policy.kernels_refused == ""
    assert permit(policy, ["cpu"]) == Permit()


@given(
    st.builds(
        MachineFacts,
        users=st.booleans(),
        mounts=st.booleans(),
        pid_namespace=st.booleans(),
        user_namespace=st.booleans(),
        network=st.booleans(),
        landlock=st.integers(0, 9),
        seccomp=st.booleans(),
        cgroup=st.sampled_from(["", "/c"]),
        unreached=st.sampled_from([(), ("/root",)]),
    ),
    st.booleans(),
    st.booleans(),
)
def test_tenants_code_needs_restricted_calls_and_files(
    facts: MachineFacts, programs: bool, kernels: bool
) -> None:
    policy = decide(facts, IsolationSetting.REQUIRE, programs=programs, kernels=kernels)
    held = policy.seccomp and (policy.landlock > 0 or policy.users)
    ends = policy.pid_namespace or policy.users or bool(policy.cgroup)
    assert held or policy.kernels_refused
    assert (held and ends) or not (policy.execute or policy.link)
    allowed = permit(policy, [])
    assert not (
        allowed.others and not (policy.pid_namespace or policy.users or policy.landlock >= 6)
    )


def test_isolation_none_keeps_the_free_mechanisms_only() -> None:
    policy = decide(ALL, IsolationSetting.NONE, programs=True, kernels=True)
    assert policy == IsolationPolicy(execute=True, link=True)
    assert policy.mechanisms == ("undumpable",)


@pytest.mark.parametrize(
    ("facts", "refused"),
    [
        (ALL, ""),
        (ORDINARY, ""),
        (MachineFacts(seccomp=True, landlock=6, cgroup="/c"), ""),
        (MachineFacts(seccomp=True, landlock=4, cgroup="/c"), "send signals"),
        (MachineFacts(seccomp=True, landlock=3, pid_namespace=True), "Landlock 4"),
        (MachineFacts(seccomp=True, pid_namespace=True, users=True), "Landlock 4"),
        (MachineFacts(seccomp=True, landlock=7, users=True), "ends its processes"),
        (MachineFacts(landlock=7, pid_namespace=True), "no seccomp"),
    ],
)
def test_functions_run_only_where_their_files_ports_calls_and_ends_are_held(
    facts: MachineFacts, refused: str
) -> None:
    policy = decide(facts, IsolationSetting.AUTO, programs=False, kernels=False)
    assert refused in policy.runs_refused
    assert bool(policy.runs_refused) == bool(refused)
    assert decide(facts, IsolationSetting.NONE, programs=False, kernels=False).runs_refused == ""
