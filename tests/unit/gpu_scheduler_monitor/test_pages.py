"""Content that is too long for one message: leases of a host, its full state, warm keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.decode import encode_json
from corekit.errors import AppError
from corekit.ids import DeviceId, HostId, JobId, LeaseId
from corekit.values import replace
from gpu_scheduler.daemon.endpoints.hello_pages import HelloPages
from gpu_scheduler.daemon.endpoints.pages import fitting as fitting_answer
from gpu_scheduler.model import (
    Device,
    DeviceKind,
    Door,
    HostState,
    LeaseLifetime,
    LeaseState,
    Record,
    Step,
)
from gpu_scheduler.monitor.device_report import without_excess_keys
from gpu_scheduler.monitor.full_state import WAITING_MAX, FullState, pages_of
from gpu_scheduler.names import NAME_CHARS_MAX
from gpu_scheduler.protocol import answers
from gpu_scheduler.protocol.codec import EMPTY
from gpu_scheduler.protocol.host import (
    INSTALLED_MAX,
    HostHello,
    HostWelcome,
    Install,
    InstallsPage,
)
from tests.shares import share_of


def install(fence: int) -> Install:
    return Install(
        lease=LeaseId(f"lease-{fence}"),
        fence=fence,
        secret="",
        state=LeaseState.ACTIVE,
        shares=(),
        tenant="t",
        hold=LeaseLifetime.SESSION,
        door=Door.GATEWAY,
        cap_s=None,
        connect_by_s=None,
    )


@given(st.lists(st.text(min_size=1, max_size=20)), st.integers(1, 60))
def test_pages_of_names_hold_all_of_them_in_order(names: list[str], bytes_max: int) -> None:
    pages = pages_of(names, bytes_max)
    assert [name for page in pages for name in page] == names
    assert len(pages) == 1 or all(pages)
    for page in pages:
        assert len(page) <= 1 or sum(len(name.encode()) + 3 for name in page) <= bytes_max


def whole(state: FullState) -> bool:
    """Read anew: it changes between two lines."""
    return state.is_whole


def test_a_full_state_requests_further_pages_and_keeps_pushes() -> None:
    state = FullState(HostWelcome(epoch=1, installs=(install(3),), more=True, until=9))
    assert not whole(state)
    assert (state.next_page().after, state.next_page().until) == (3, 9)
    assert state.hold("end", EMPTY)
    state.add(InstallsPage(installs=(install(5), install(7)), more=True))
    assert state.next_page().after == 7
    state.add(InstallsPage(installs=(install(9),)))
    assert whole(state)
    assert [one.fence for one in state.installs] == [3, 5, 7, 9]
    assert [name for name, _ in state.waiting] == ["end"]
    assert not all(state.hold("end", EMPTY) for _ in range(WAITING_MAX))


def test_an_empty_page_is_not_the_end_of_a_full_state_that_has_more() -> None:
    """Leases that are not in a full state are revoked: half a one must never pass for it."""
    state = FullState(HostWelcome(epoch=1, installs=(install(3),), more=True, until=9))
    with pytest.raises(AppError, match="without an install"):
        state.add(InstallsPage(installs=(), more=True))
    assert not state.is_whole


def test_a_hello_is_whole_with_its_last_page_and_returned_once() -> None:
    hello = hello_of("a")
    pages = HelloPages()
    pages.begin(hello, "1.0")
    assert pages.whole() is None
    pages.add((LeaseId("b"),), more=True)
    assert pages.whole() is None
    pages.add((LeaseId("c"),), more=False)
    installed = tuple(map(LeaseId, "abc"))
    assert pages.whole() == (replace(hello, installed=installed, more=False), "1.0")
    assert pages.whole() is None, "once"
    with pytest.raises(AppError, match="is incomplete"):
        pages.add((), more=False)


def test_a_hello_with_too_many_leases_is_dropped() -> None:
    pages = HelloPages()
    pages.begin(hello_of("a"), "1.0")
    with pytest.raises(AppError, match="more than"):
        pages.add((LeaseId("x"),) * INSTALLED_MAX, more=True)
    with pytest.raises(AppError, match="is incomplete"):
        pages.add((), more=False)


def hello_of(*installed: str, more: bool = True) -> HostHello:
    return HostHello(
        host=HostId("h"),
        incarnation="i",
        gateway=None,
        devices=(),
        epoch_seen=0,
        installed=tuple(map(LeaseId, installed)),
        version=1,
        more=more,
    )


def test_a_name_in_a_hello_has_a_longest_length() -> None:
    """The leases of a hello are counted; without this their bytes would have no limit."""
    with pytest.raises(AppError, match="a lease name has 257 characters"):
        HelloPages().begin(hello_of("x" * (NAME_CHARS_MAX + 1)), "1.0")


def test_a_page_with_a_name_that_is_too_long_drops_the_hello() -> None:
    pages = HelloPages()
    pages.begin(hello_of(), "1.0")
    with pytest.raises(AppError, match="a lease name has 257 characters"):
        pages.add((LeaseId("x" * (NAME_CHARS_MAX + 1)),), more=True)
    with pytest.raises(AppError, match="is incomplete"):
        pages.add((), more=False)


def test_warm_keys_that_have_no_room_are_left_out() -> None:
    small = Device(id=DeviceId("h/0"), index=0, kind=DeviceKind.CUDA, model="M", memory_mib=1)
    big = replace(small, id=DeviceId("h/1"), resident=tuple(f"{n:0200}" for n in range(1000)))
    assert without_excess_keys((small, small)) == ((small, small), 0)
    told, left_out = without_excess_keys((small, big), 50_000)
    assert sum(len(encode_json(device)) for device in told) <= 50_000
    assert told[0] == small
    assert told[1].resident == big.resident[: len(told[1].resident)]
    assert left_out == 1000 - len(told[1].resident) > 0
    assert without_excess_keys((small, big), 10) == ((small, replace(big, resident=())), 1000)


def seen(host: str) -> answers.HostView:
    return answers.HostView(
        host=HostId(host),
        state=HostState.UP,
        gateway=None,
        incarnation="i",
        silent_s=0.0,
        devices=(),
    )


def test_answers_are_truncated_and_marked_as_such() -> None:
    record = Record(
        holder=JobId("j"),
        revision=1,
        owner=None,
        attempt=0,
        step=Step.RECEIVED,
        waiting_since_s=None,
        handle="h" * 100,
    )
    whole = answers.RecordsAnswer(records=(record,) * 8)
    size = len(encode_json(whole))
    assert fitting_answer(whole, size) == encode_json(whole)
    assert fitting_answer(whole, size - 1) == encode_json(
        answers.RecordsAnswer(records=(record,) * 4)
    )
    assert fitting_answer(whole, 1) == encode_json(answers.RecordsAnswer(records=(record,)))
    hosts = answers.InventoryAnswer(hosts=tuple(seen(f"h{n}") for n in range(4)))
    shorter = fitting_answer(hosts, len(encode_json(hosts)) - 1)
    assert shorter == encode_json(replace(hosts, hosts=hosts.hosts[:2], more=True))
    leases = answers.LeasesAnswer(leases=(), more=False)
    assert fitting_answer(leases, 1) == encode_json(leases)


def test_a_full_state_is_truncated_to_its_first_page_with_its_end() -> None:
    share = share_of()
    installs = tuple(replace(install(fence), shares=(share,)) for fence in (3, 5, 7, 9))
    whole = HostWelcome(epoch=1, installs=installs, run="r")
    size = len(encode_json(whole))
    assert b"more" not in fitting_answer(whole, size), "left out of a state that is whole"
    cut = replace(whole, installs=installs[:2], more=True, until=9)
    assert fitting_answer(whole, size - 1) == encode_json(cut)
    assert fitting_answer(whole, 1) == encode_json(replace(cut, installs=installs[:1]))
    page = InstallsPage(installs=installs)
    assert fitting_answer(page, 1) == encode_json(InstallsPage(installs=installs[:1], more=True))
