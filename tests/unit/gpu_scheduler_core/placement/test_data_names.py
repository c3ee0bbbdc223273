"""Data sets and programs of hosts as requirements of requests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.errors import AppError
from corekit.ids import HostId
from gpu_scheduler.core.inventory.devices import device_class_of, fits, permanent_mismatch
from gpu_scheduler.data_names import (
    first_missing,
    offered_of,
    offers_text,
    reference_problem,
    short,
)
from gpu_scheduler.model import Request
from gpu_scheduler.names import HOST_PROGRAMS
from gpu_scheduler.protocol import answers, changes, ops
from gpu_scheduler.request_text import request_text
from gpu_scheduler.verdicts import NoFit
from tests.scheduler_world import World, device, idle_state

OLD, NEW = "0" * 64, "1" * 64


def asks(**names: Any) -> Request:
    return Request(memory_mib=1, **names)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (asks(), None),
        (asks(data=("proteins",)), None),
        (asks(data=("proteins", "taxonomy")), None),
        (asks(data=(f"proteins@sha256:{OLD}",)), None),
        (asks(data=(f"proteins@sha256:{NEW}",)), NoFit.DATA),
        (asks(data=("proteins", "nr")), NoFit.DATA),
        (asks(data=(f"taxonomy@sha256:{OLD}",)), NoFit.DATA),  # its content is not known
        (asks(programs=("blast",)), None),
        (asks(programs=("blast", "hmmer")), NoFit.PROGRAM),
        (asks(programs=("proteins",)), NoFit.PROGRAM),  # a data set is no program
        (asks(data=("blast",)), NoFit.DATA),
    ],
)
def test_a_device_fits_where_its_host_has_the_names(request_: Request, reason: Any) -> None:
    offered = offered_of({"proteins": OLD, "taxonomy": ""}), offered_of({"blast": NEW})
    made = device_class_of(device("d"), gateway=True, data=offered[0], programs=offered[1])
    assert permanent_mismatch(request_, made) is reason


def test_a_declared_device_may_have_any_names() -> None:
    assert fits(asks(data=("proteins",), programs=("blast",)), idle_state(device("d"))) is None


@pytest.mark.parametrize(
    "text", ["", " ", "a b", "a,b", "a/b", "a@sha256:12", f"a@{OLD}", f"@sha256:{OLD}", "é", "-a"]
)
def test_a_malformed_name_is_refused(text: str) -> None:
    assert reference_problem(text) is not None
    with pytest.raises(AppError, match="is not a name such as proteins"):
        Request(data=(text,))


A_AND_B = "host a has data proteins, lacks program {0}; host b has data proteins, lacks program {0}"


def world() -> World:
    """Host a has the data set, host b the data set and the program, host c neither."""
    made = World()
    made.host("a", device("da", 4000), data={"proteins": OLD})
    made.host("b", device("db", 1000), data={"proteins": NEW}, programs={"blast": OLD})
    made.host("c", device("dc", 8000))
    return made


@pytest.mark.parametrize(
    ("request_", "there"),
    [
        (asks(data=("proteins",), programs=("blast",)), {"b"}),
        (asks(data=(f"proteins@sha256:{OLD}",)), {"a"}),
        (asks(data=("proteins",)), {"a", "b"}),
    ],
)
def test_grants_are_on_hosts_with_the_names(request_: Request, there: set[str]) -> None:
    made = world()
    for number in range(20):
        assert made.granted(f"j{number}", request_).shares[0].host in there


@pytest.mark.parametrize(
    ("request_", "what", "most"),
    [
        (
            asks(data=("protein",)),
            NoFit.DATA,
            "; ".join(f"host {h} lacks data protein" for h in "abc")
            + " (did you mean 'proteins'?)",
        ),
        (
            asks(data=("proteins",), programs=("blastp",)),
            NoFit.PROGRAM,
            A_AND_B.format("blastp") + " (did you mean 'blast'?)",
        ),
        (
            asks(data=(f"proteins@sha256:{OLD}",), programs=("blast",)),
            NoFit.PROGRAM,
            "host a has data proteins@sha256:000000000000, lacks program blast",
        ),
        (
            asks(data=(f"proteins@sha256:{'2' * 64}",)),
            NoFit.DATA,
            "; ".join(
                f"host {h} lacks data proteins@sha256:222222222222{other}"
                for h, other in {
                    "a": " (it has proteins@sha256:000000000000)",
                    "b": " (it has proteins@sha256:111111111111)",
                    "c": "",
                }.items()
            ),
        ),
        (
            Request(data=("proteins",), memory_mib=2000, programs=("hmmer",)),
            NoFit.PROGRAM,
            A_AND_B.format("hmmer") + " (the programs of all hosts: blast)",
        ),
    ],
)
def test_what_no_host_has_is_impossible_and_named(
    request_: Request, what: NoFit, most: str
) -> None:
    made = world()
    answer = made.reserve("a", request_)
    assert answer.outcome is answers.Outcome.IMPOSSIBLE
    assert (answer.explanation.short.what, answer.explanation.short.most) == (what, most)
    assert answer.explanation.largest.programs == ()
    made.ask(ops.Explain, request=request_)
    assert f"{most}, the largest fit is" in made.answer().explanation.sentence


def test_a_host_that_gets_the_data_serves_waiting_requests() -> None:
    made = world()
    lease = made.granted("a", Request(memory_mib=4000, data=(f"proteins@sha256:{OLD}",)))
    waiting = made.reserve("b", Request(memory_mib=4000, data=("proteins",)))
    assert waiting.outcome is answers.Outcome.WAITING
    made.host("c", device("dc", 8000), data={"proteins": NEW})
    assert made.grants() == ["b"]
    made.release(lease)


def test_a_host_that_lost_the_data_makes_waiting_requests_impossible() -> None:
    made = world()
    asked = Request(memory_mib=4000, data=("proteins",))
    made.granted("a", asked)
    assert made.reserve("b", asked).outcome is answers.Outcome.WAITING
    made.host("a", device("da", 4000))
    assert [push.attempt for push in made.pushes(answers.ImpossiblePush)] == ["b"]
    assert made.reserve("c", asked).outcome is answers.Outcome.IMPOSSIBLE


def test_names_survive_a_restart_and_a_snapshot_without_them_is_read() -> None:
    made = world()
    made.start()
    host = made.machine.state.inventory.hosts[HostId("b")]
    assert (host.data, host.programs) == ((("proteins", NEW),), (("blast", OLD),))
    made.host("b", device("db", 1000), data={"proteins": NEW}, programs={"blast": OLD})
    assert made.granted("a", asks(programs=("blast",))).shares[0].host == "b"
    old = changes.HostRegistered(
        host=HostId("z"), incarnation="1", gateway=None, devices=(device("z"),)
    )
    assert (old.data, old.programs) == ({}, {})


def test_the_inventory_shows_the_names() -> None:
    made = world()
    made.ask(ops.Inventory)
    shown = {host.host: (dict(host.data), dict(host.programs)) for host in made.answer().hosts}
    assert shown["b"] == ({"proteins": NEW}, {"blast": OLD})
    assert shown["c"] == ({}, {})


def test_a_request_names_them_to_people() -> None:
    text = request_text(asks(data=(f"proteins@sha256:{OLD}",), programs=("blast",)))
    assert text.endswith("data proteins@sha256:000000000000, program blast")
    assert short("proteins") == "proteins"


_NAMES = st.sampled_from(("a", "b", "c", f"a@sha256:{OLD}", f"b@sha256:{NEW}"))
_HOST = st.dictionaries(st.sampled_from("abc"), st.sampled_from((OLD, NEW, "")))


@given(
    hosts=st.lists(st.tuples(_HOST, _HOST), min_size=1, max_size=4),
    wanted=st.lists(
        st.tuples(st.lists(_NAMES, max_size=2, unique=True), st.lists(_NAMES, max_size=1)),
        min_size=1,
        max_size=6,
    ),
    count=st.integers(1, 2),
)
def test_no_grant_is_on_a_host_that_lacks_a_name(
    hosts: list[Any], wanted: list[Any], count: int
) -> None:
    """Granted, waiting or impossible: each by what the hosts of the devices have."""
    made = World()
    for number, (data, programs) in enumerate(hosts):
        made.host(f"h{number}", device(f"d{number}", 100), data=data, programs=programs)
    for number, (data, programs) in enumerate(wanted):
        request = Request(count=count, memory_mib=40, data=tuple(data), programs=tuple(programs))
        answer = made.reserve(f"j{number}", request)
        able = {
            f"h{n}"
            for n, (there, run) in enumerate(hosts)
            if first_missing(request.data, offered_of(there)) is None
            and first_missing(request.programs, offered_of(run)) is None
        }
        assert (answer.outcome is answers.Outcome.IMPOSSIBLE) == (len(able) < count)
        for lease in made.leases:
            if lease.attempt == f"j{number}":
                assert {share.host for share in lease.shares} <= able


def test_the_names_that_state_what_a_host_runs_are_not_offers() -> None:
    own = dict.fromkeys(HOST_PROGRAMS, "")
    assert offers_text({}, own) == ""
    assert offers_text({"nr": ""}, {"blast": "", **own}) == "data nr; programs blast"
