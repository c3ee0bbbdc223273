"""The classic form, byte for byte, against a real ssgmd."""

from __future__ import annotations

import re

import pytest

from tests.integration.ssgm.conftest import Lab, run_ssgm

LEASE = r"(lease-\w+)"


def test_the_classic_transcript(lab: Lab) -> None:
    """What the published orchestrator reads: the line, by position."""
    done = lab.classic("-alloc", "-g", "2")
    golden = (
        rf"SSGM_ERROR=0;JOB={LEASE};RCUDA_DEVICE_COUNT=2;"
        r"RCUDA_DEVICE_0=k80@8308:0;RCUDA_DEVICE_1=k80@8308:1;\n"
    )
    match = re.fullmatch(golden, done.stdout)
    assert match, done.stdout
    assert (done.returncode, done.stderr) == (0, "")
    (lease,) = lab.json("leases")["leases"]
    assert (lease["id"], lease["hold"], lease["door"]) == (match[1], "deadline", "port")
    busy = lab.classic("-alloc", "-g", "1")
    assert (busy.returncode, busy.stdout) == (0, "SSGM_ERROR=2;\n")
    assert "2 allocated exclusively" in busy.stderr
    impossible = lab.classic("-alloc", "-g", "3")
    assert (impossible.returncode, impossible.stdout) == (0, "SSGM_ERROR=1;\n")
    assert "the largest fit is 2 × cuda with 12288 MiB" in impossible.stderr
    for _ in range(2):  # giving back twice is no error
        back = lab.classic("-dealloc", "-j", match[1])
        assert (back.returncode, back.stdout, back.stderr) == (0, "SSGM_ERROR=0;\n", "")


@pytest.mark.parametrize(
    ("words", "sharing"),
    [
        ((), [True]),
        (("-m", "1024"), [False]),
        (("-memory", "1GiB", "-sharing", "exclusive"), [True]),
        (("--memory", "1GiB", "--kinds", "opencl,cuda", "-placement", "spread"), [False]),
        (("-compute-guarantee", "25", "-sharing", "shared", "-priority", "-5"), [False]),
        (("-g", "2", "-models", "A100,Tesla K80", "--lease-length", "90s"), [True, True]),
    ],
)
def test_every_word_with_one_dash_or_two(
    lab: Lab, words: tuple[str, ...], sharing: list[bool]
) -> None:
    assert lab.classic("-alloc", *words).stdout.startswith("SSGM_ERROR=0;")
    (lease,) = lab.json("leases")["leases"]
    assert [share["exclusive"] for share in lease["shares"]] == sharing


def test_a_classic_lease_ends_at_its_length(lab: Lab) -> None:
    assert "SSGM_ERROR=0;" in lab.classic("-alloc", "-g", "2", "-lease-length", "10ms").stdout
    waited = lab.classic("-alloc", "-g", "2", "-wait")
    assert waited.stdout.startswith("SSGM_ERROR=0;"), "the wait ends with the first lease"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("-alloc", "-g", "many"), "'many' is not an integer"),
        (("-alloc", "-g", "0"), "count 0 must lie in"),
        (("-alloc", "-kinds", "gpu"), "'gpu' is not one of cuda"),
        (("-g", "1"), "one of the arguments -alloc -dealloc is required"),
        (("-alloc", "-dealloc"), "not allowed with argument"),
        (("-alloc", "-colour", "red"), "unrecognized arguments"),
        (("-dealloc",), "-dealloc needs -j ID"),
    ],
)
def test_a_wrong_classic_line_is_a_bad_request(arguments: tuple[str, ...], why: str) -> None:
    done = run_ssgm("-S", "127.0.0.1", "-P", "1", *arguments)
    assert (done.returncode, done.stdout) == (2, "SSGM_ERROR=1;\n")
    assert why in done.stderr


def test_a_port_that_is_none_is_a_bad_request() -> None:
    done = run_ssgm("-S", "127.0.0.1", "-P", "http", "-alloc")
    assert (done.returncode, done.stdout) == (2, "SSGM_ERROR=1;\n")
    assert "'127.0.0.1:http' is not an address" in done.stderr


def test_an_unreachable_scheduler_is_a_bad_request_with_its_own_status(nobody: str) -> None:
    host, _, port = nobody.rpartition(":")
    done = run_ssgm("-S", host, "-P", port, "-alloc")
    assert (done.returncode, done.stdout) == (8, "SSGM_ERROR=1;\n")
    assert "is ssgmd up?" in done.stderr
