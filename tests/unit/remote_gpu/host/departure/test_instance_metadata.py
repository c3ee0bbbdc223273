"""The instance metadata as gpud reads it, and the notices in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import pytest

from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from remote_gpu.host.departure.departure import Departure
from remote_gpu.host.departure.metadata import (
    InstanceMetadata,
    MetadataWatch,
    endpoint_of,
    is_on_ec2,
)
from remote_gpu.host.departure.notices import (
    Moment,
    Notice,
    NoticeSource,
    lifecycle,
    rebalance,
    spot,
)
from tests.instance_metadata import InstanceMetadataServer, serving_metadata

LIFECYCLE = "autoscaling/target-lifecycle-state"
#: 2020-09-18T08:20:00Z
NOW = Moment(at_s=50.0, wall_s=1600417200.0, drain_s=120.0, reserve_s=10.0)
Service = tuple[InstanceMetadataServer, str]


@pytest.fixture
def service() -> Iterator[Service]:
    with serving_metadata() as serving:
        yield serving


def read(endpoint: str, *paths: str, answer_s: float = 10.0) -> list[str | None]:
    async def main() -> list[str | None]:
        async with InstanceMetadata(endpoint, answer_s) as metadata:
            return [await metadata.item(path) for path in paths]

    return asyncio.run(main())


def failure(endpoint: str, answer_s: float = 10.0) -> str:
    with pytest.raises(AppError) as caught:
        read(endpoint, LIFECYCLE, answer_s=answer_s)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    return caught.value.message


# ---------------------------------------------------------------------- the protocol


def test_one_token_serves_many_items(service: Service) -> None:
    server, endpoint = service
    server.items[LIFECYCLE] = "InService"
    assert read(endpoint, LIFECYCLE, "spot/instance-action", LIFECYCLE) == [
        "InService",
        None,
        "InService",
    ]
    assert [one.partition(" ")[0] for one in server.requests] == ["PUT", "GET", "GET", "GET"]


def test_an_expired_token_is_renewed_once(service: Service) -> None:
    server, endpoint = service
    server.items[LIFECYCLE] = "InService"

    async def main() -> str | None:
        async with InstanceMetadata(endpoint, 10.0) as metadata:
            await metadata.item(LIFECYCLE)
            server.expire_tokens()
            return await metadata.item(LIFECYCLE)

    assert asyncio.run(main()) == "InService"
    verbs = [one.partition(" ")[0] for one in server.requests]
    assert verbs == ["PUT", "GET", "GET", "PUT", "GET"]


def test_beyond_the_hop_limit_no_token_arrives(service: Service) -> None:
    server, endpoint = service
    server.hops = 1
    assert "HttpPutResponseHopLimit" in failure(endpoint, answer_s=0.05)
    server.hop_limit = 2
    assert read(endpoint, LIFECYCLE) == [None]


def test_a_slow_service_is_given_up(service: Service) -> None:
    server, endpoint = service
    server.items[LIFECYCLE] = "InService"

    async def main() -> None:
        async with InstanceMetadata(endpoint, 0.2) as metadata:
            await metadata.item(LIFECYCLE)
            server.released.clear()
            await metadata.item(LIFECYCLE)

    with pytest.raises(AppError, match="no answer in"):
        asyncio.run(main())


def test_other_failures(service: Service) -> None:
    server, endpoint = service
    server.disabled = True
    assert "HttpEndpoint" in failure(endpoint)
    server.disabled, server.status = False, 503
    assert "503" in failure(endpoint)
    server.status, server.resets = None, 2
    assert endpoint in failure(endpoint)
    assert "127.0.0.1" in failure("http://127.0.0.1:1")


# ---------------------------------------------------------------------- where it is


def test_the_endpoint() -> None:
    assert endpoint_of({}) == "http://169.254.169.254"
    ipv6 = {"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE": "IPv6"}
    assert endpoint_of(ipv6) == "http://[fd00:ec2::254]"
    named = {**ipv6, "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9/"}
    assert endpoint_of(named) == "http://127.0.0.1:9"


def test_whether_this_machine_is_an_instance(tmp_path: Path) -> None:
    assert not is_on_ec2({}, tmp_path)
    assert is_on_ec2({"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9"}, tmp_path)
    vendor = tmp_path / "devices/virtual/dmi/id/sys_vendor"
    vendor.parent.mkdir(parents=True)
    vendor.write_text("QEMU\n")
    assert not is_on_ec2({}, tmp_path)
    vendor.write_text("Amazon EC2\n")
    assert is_on_ec2({}, tmp_path)
    assert not is_on_ec2({"AWS_EC2_METADATA_DISABLED": "TRUE"}, tmp_path)
    vendor.unlink()
    (tmp_path / "hypervisor").mkdir()
    (tmp_path / "hypervisor/uuid").write_text("ec2e1916-9099-7caf-fd21-012345abcdef\n")
    assert is_on_ec2({}, tmp_path), "Xen"


# ---------------------------------------------------------------------- notices


@pytest.mark.parametrize(
    ("time", "until_s"),
    [
        ("2020-09-18T08:22:00Z", 160.0),  # two minutes, less the reserve
        ("2020-09-18T08:20:30Z", 70.0),
        ("2020-09-18T08:19:00Z", 50.0),  # over already
        ("2020-09-18T09:22:00Z", 160.0),  # this clock is late by an hour
    ],
)
def test_a_spot_interruption(time: str, until_s: float) -> None:
    notice = spot(f'{{"action": "terminate", "time": "{time}"}}', NOW)
    assert (notice.until_s, notice.ends) == (until_s, True)
    assert notice.reason == f"spot interruption: terminate at {time}"


def test_a_hibernation_begins_at_once_and_the_program_returns_from_it() -> None:
    notice = spot('{"action": "hibernate", "time": "2020-09-18T08:22:00Z"}', NOW)
    assert (notice.until_s, notice.ends) == (NOW.at_s, False)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"action": "stop", "time": "soon"}', "<html>"])
def test_an_unreadable_interruption_is_an_error(text: str) -> None:
    with pytest.raises(AppError, match="spot/instance-action"):
        spot(text, NOW)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(AppError, match="time zone"):
        spot('{"action": "stop", "time": "2020-09-18T08:22:00"}', NOW)


def test_a_rebalance_recommendation_has_no_limit() -> None:
    notice = rebalance('{"noticeTime": "2020-10-27T08:22:00Z"}', NOW)
    assert (notice.until_s, notice.ends) == (None, False)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("InService", None),
        ("Detached", None),
        ("Terminated", (170.0, True)),
        ("Warmed:Terminated", (170.0, True)),
        ("Warmed:Stopped", (170.0, False)),
        ("Warmed:Running", (170.0, False)),
        ("Warmed:Hibernated", (170.0, False)),
        ("Standby", (170.0, False)),
        ("Unheard:Of", None),
    ],
)
def test_lifecycle_states(state: str, expected: tuple[float, bool] | None) -> None:
    notice = lifecycle(state, NOW)
    assert (None if notice is None else (notice.until_s, notice.ends)) == expected


# ---------------------------------------------------------------------- the watch


def watched(
    endpoint: str, steps: Callable[[MetadataWatch, Departure], Coroutine[object, object, None]]
) -> Departure:
    """Run steps with a watch; returns the departure with its notices."""

    async def main() -> Departure:
        departure = Departure(Budget(), 120.0)
        async with InstanceMetadata(endpoint, 5.0) as metadata:
            await steps(MetadataWatch(metadata, departure, Budget()), departure)
        return departure

    return asyncio.run(main())


def test_notices_come_and_go(service: Service) -> None:
    server, endpoint = service

    async def steps(watch: MetadataWatch, departure: Departure) -> None:
        seen: list[Notice | None] = []
        for state in ("InService", "Warmed:Running", "Warmed:Running", "InService"):
            server.items[LIFECYCLE] = state
            await watch.look()
            seen.append(departure.current)
        assert [one is not None for one in seen] == [False, True, True, False]
        assert seen[1] == seen[2], "its limit counts from its first sight"

    watched(endpoint, steps)


def test_a_service_that_fails_changes_no_notice(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    server, endpoint = service
    server.items["spot/instance-action"] = '{"action": "stop", "time": "2020-09-18T08:22:00Z"}'

    async def steps(watch: MetadataWatch, departure: Departure) -> None:
        await watch.look()
        server.status = 503
        for _ in range(3):
            await watch.look()
        server.status = None
        server.items["spot/instance-action"] = "<html>"
        await watch.look()

    departure = watched(endpoint, steps)
    assert departure.current is not None
    assert departure.current.reason.startswith("spot interruption: stop")
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2, "one for three failures, one for the unreadable item"


def test_sources_that_are_not_watched(service: Service) -> None:
    server, endpoint = service
    server.items["events/recommendations/rebalance"] = '{"noticeTime": "2020-10-27T08:22:00Z"}'

    async def main() -> list[Notice | None]:
        found = []
        for sources in ((NoticeSource.SPOT,), (NoticeSource.SPOT, NoticeSource.REBALANCE)):
            departure = Departure(Budget(), 120.0)
            async with InstanceMetadata(endpoint, 5.0) as metadata:
                await MetadataWatch(metadata, departure, Budget(), sources).look()
            found.append(departure.current)
        return found

    ignored, drained = asyncio.run(main())
    assert ignored is None
    assert drained is not None
