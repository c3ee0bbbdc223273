"""Secrets in the runner: how long values are kept, which failures are final, what is masked."""

from __future__ import annotations

import base64
import itertools
import logging
import random
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ConnectTimeoutError
from botocore.stub import Stubber
from hypothesis import given
from hypothesis import strategies as st

from contract.aws.faults import Fault
from contract.secrets.reference import SecretReference, parse_reference
from contract.states import Reason
from lambda_functions.gpu_runner.errors import AttemptFailed, RunnerError
from lambda_functions.gpu_runner.script.process import LogTail
from lambda_functions.gpu_runner.secrets.masking import (
    MASK,
    RUN_BYTES,
    WINDOW_BYTES,
    MaskedStream,
    Masker,
    masks,
)
from lambda_functions.gpu_runner.secrets.stores import BYTES_MAX, Stores, Unreadable
from lambda_functions.gpu_runner.secrets.values import (
    AGE_S,
    STALE_S,
    WITHIN_S,
    Secrets,
    SecretValues,
    parsed,
)
from lambda_functions.gpu_runner.settings import read_settings

# ---------------------------------------------------------------------- masking

PEM = "-----BEGIN KEY-----\nMIIBVQ\nabcdefgh\nAw==\n-----END KEY-----\n"

MASKED = {
    "whole": (["hunter2"], "the key is hunter2!", f"the key is {MASK}!"),
    "twice": (["hunter2"], "hunter2hunter2", MASK),
    "overlapping": (["abab"], "xabababx", f"x{MASK}x"),
    "nothing": (["hunter2"], "hunter", "hunter"),
    "longest": (["abcd", "abcdefgh"], "abcdefgh abcd", f"{MASK} {MASK}"),
    "short": (["abc", ""], "abc", "abc"),
    "lines": ([PEM], "x MIIBVQ y abcdefgh\r\nAw==", f"x {MASK} y {MASK}\r\n{MASK}"),
    "one line of it": (["  secret-a\n  secret-b"], "secret-b", MASK),
    "json": (
        ['{"user": "ada", "password": "correct horse"}'],
        "ada has correct horse",
        f"ada has {MASK}",
    ),
    "json as a whole": (['{"password": "correct horse"}'], '{"password": "correct horse"}', MASK),
    "not json": (["{not json}"], "{not json}", MASK),
    "metacharacters": (["a.*b"], "a.*b axxb", f"{MASK} axxb"),
    "non-ascii": (["schlüssel"], "der schlüssel", f"der {MASK}"),
    "long": (["x1" * 2000], "x1" * 2000, MASK),
    "long, in other letters": (["schlüssel " * 9], f"«{'schlüssel ' * 8}schlößer", f"«{MASK}ößer"),
    "less than a run": (["ab1" * 21], "ab1" * 10, "ab1" * 10),
    "lone surrogates beside it": (["hunter2"], "\ud800 hunter", "\ud800 hunter"),
    "no secrets": ([], "anything", "anything"),
}


@pytest.mark.parametrize("case", MASKED)
def test_masking(case: str) -> None:
    values, text, expected = MASKED[case]
    masker = Masker(values)
    assert masker.text(text) == expected
    data = text.encode("utf-8", "surrogatepass")
    assert divided(masker, data, []).decode("utf-8", "surrogatepass") == expected


def divided(masker: Masker, data: bytes, cuts: list[int]) -> bytes:
    """The masked data of a stream that arrives in the pieces between `cuts`."""
    stream, places = MaskedStream(masker), [0, *sorted(cuts), len(data)]
    pieces = [stream.feed(data[a:b]) for a, b in itertools.pairwise(places)]
    return b"".join([*pieces, stream.finish()])


def test_short_values_are_not_masked() -> None:
    assert not masks("abc")
    assert not masks("\nab\ncd\n")
    assert masks("abcd")


@given(
    values=st.lists(st.text("ab", min_size=4, max_size=8), max_size=4),
    text=st.text("abc", max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=8),
)
def test_a_stream_is_masked_as_its_whole_however_it_is_divided(
    values: list[str], text: str, cuts: list[int]
) -> None:
    masker = Masker(values)
    done = divided(masker, text.encode(), cuts).decode()
    assert done == masker.text(text)
    assert not any(value in done for value in values)


@given(
    values=st.lists(st.text("ab", min_size=RUN_BYTES, max_size=300), min_size=1, max_size=3),
    runs=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 300), st.integers(0, 300)), max_size=4
    ),
    cuts=st.lists(st.integers(0, 1200), max_size=8),
)
def test_every_long_run_of_a_long_secret_is_masked_and_no_short_one(
    values: list[str], runs: list[tuple[int, int, int]], cuts: list[int]
) -> None:
    shown = [values[which % len(values)][at : at + size] for which, at, size in runs]
    done = divided(Masker(values), "|".join(shown).encode(), cuts).decode().split("|")
    for printed, masked in zip(shown, done if shown else [], strict=True):
        if len(printed) >= RUN_BYTES:
            assert masked == MASK
        if len(printed) < WINDOW_BYTES:
            assert masked == printed


def base64_of(size: int, seed: int) -> str:
    """A secret of `size` characters in one line."""
    return base64.b64encode(random.Random(seed).randbytes(size)).decode()[:size]


KEY_BYTES = 65536

LONG: dict[str, Callable[[str], str]] = {
    "from its middle": lambda key: key[30001:34567],
    "from its middle, of another secret": lambda key: base64_of(4096, 19)[77:3333],
    "wrapped at 76": lambda key: "\n".join(textwrap.wrap(key[11:], 76)),
    "wrapped at 64": lambda key: "\r\n".join(textwrap.wrap(key[11:], 64)),
    "indented": lambda key: textwrap.indent("\n".join(textwrap.wrap(key, 76)), "    "),
    "the whole": lambda key: key,
}


@pytest.mark.parametrize("case", LONG)
def test_a_long_secret_is_masked_however_it_is_printed(case: str) -> None:
    key = base64_of(KEY_BYTES, 0)
    masker = Masker([key, *(base64_of(4096, seed) for seed in range(1, 20))])
    printed = LONG[case](key)
    masked = re.sub(r"[^\s]{63,}", MASK, printed)  # a short last line of a wrapped one may stay
    done = divided(masker, f"key: {printed} !\n".encode(), list(range(0, len(printed), 4099)))
    assert done.decode().splitlines()[:-1] == f"key: {masked} !\n".splitlines()[:-1]
    assert len(done.decode().splitlines()[-1]) < RUN_BYTES + len("    key:  !")
    assert masked.count(MASK) >= len(printed.splitlines()) - 1


def test_only_the_end_of_an_unfinished_line_is_held_back() -> None:
    stream = MaskedStream(Masker(["hunter2"]))
    assert stream.feed(b"progress 10 %\n") == b"progress 10 %\n"
    assert stream.feed(b"progress 20 %\r") == b"progress 20 %\r"
    assert stream.feed(b"x" * 100 + b"key: hunt") == b"x" * (109 - RUN_BYTES + 1)
    assert stream.feed(b"ing\n") == b"x" * (100 - 109 + RUN_BYTES - 1) + b"key: hunting\n"
    assert stream.feed(b"key: hunt") + stream.feed(b"er2\n") == f"key: {MASK}\n".encode()
    assert stream.feed(b"hun") + stream.finish() == b"hun"


def test_neither_the_log_nor_its_tail_shows_a_secret(capsys: pytest.CaptureFixture[str]) -> None:
    tail = LogTail(masker=Masker(["hunter2"]))
    for piece in (b"a hunt", b"er2 b\n", b"x" * 9000, b"hunter2"):
        tail.feed(piece)
    tail.finish()
    shown = capsys.readouterr().out
    assert "hunter2" not in shown + tail.text()
    assert shown.startswith(f"a {MASK} b\n")
    assert tail.text().endswith(MASK)


# ---------------------------------------------------------------------- values over time


@dataclass
class Memory:
    """A store in memory, on a clock of its own."""

    content: dict[str, str] = field(default_factory=dict)
    faults: list[Fault | None] = field(default_factory=list)  #: of the next reads
    reads: list[str] = field(default_factory=list)
    now_s: float = 1000.0
    call_s: float = 0.0

    def read(self, reference: SecretReference) -> str:
        self.reads.append(str(reference))
        self.now_s += self.call_s
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            raise Unreadable(fault, "cannot be read: the test")
        return self.content[str(reference)]

    def pause(self, seconds: float) -> None:
        self.now_s += seconds

    def values(self) -> SecretValues:
        return SecretValues(self.read, lambda: self.now_s, self.pause, lambda: 1.0)


REFERENCES = {"": {"TOKEN": "ssm:/token"}}


def resolved(values: SecretValues, left_s: float = 600.0) -> str:
    return values.resolved(REFERENCES, left_s).of("")["TOKEN"]


def failure(act: Callable[[], object]) -> AttemptFailed:
    with pytest.raises(AttemptFailed) as caught:
        act()
    return caught.value


def test_a_value_is_read_again_only_after_its_age() -> None:
    store = Memory({"ssm:/token": "one"})
    values = store.values()
    assert resolved(values) == "one"
    store.content["ssm:/token"] = "two"
    store.now_s += AGE_S - 1
    assert resolved(values) == "one"
    assert len(store.reads) == 1
    store.now_s += 1
    assert resolved(values) == "two"
    assert len(store.reads) == 2


def test_a_clock_that_was_set_back_makes_a_value_old() -> None:
    store = Memory({"ssm:/token": "one"})
    values = store.values()
    resolved(values)
    store.now_s -= 50
    resolved(values)
    assert len(store.reads) == 2


def test_one_reference_is_read_once_for_several_variables_and_steps() -> None:
    store = Memory({"ssm:/token": "one", "ssm:/b": "two"})
    steps = {"a": {"X": "ssm:/token", "Y": "ssm:/token"}, "b": {"X": "ssm:/b", "Z": "ssm:/token"}}
    secrets = store.values().resolved(steps, 600)
    assert secrets.of("a") == {"X": "one", "Y": "one"}
    assert secrets.of("b") == {"X": "two", "Z": "one"}
    assert secrets.of("c") == {}
    assert store.reads == ["ssm:/token", "ssm:/b"]
    assert "one" not in repr(secrets)


@pytest.mark.parametrize(
    ("fault", "reason", "reads"),
    [
        (Fault.ABSENT, Reason.SECRET_ERROR, 1),
        (Fault.REFUSED, Reason.SECRET_ERROR, 1),
        (Fault.DENIED, Reason.SECRET_ERROR, 4),
        (Fault.UNAVAILABLE, Reason.SECRET_UNAVAILABLE, 4),
    ],
)
def test_a_failure_names_the_secret_and_its_reason(
    fault: Fault, reason: Reason, reads: int
) -> None:
    store = Memory({"ssm:/token": "one"}, faults=[fault] * 9)
    failed = failure(lambda: resolved(store.values()))
    assert failed.reason is reason
    assert failed.detail == "secret TOKEN (ssm:/token) cannot be read: the test"
    assert len(store.reads) == reads


@pytest.mark.parametrize("fault", [Fault.DENIED, Fault.UNAVAILABLE])
def test_a_new_policy_and_a_throttled_store_are_waited_for(fault: Fault) -> None:
    store = Memory({"ssm:/token": "one"}, faults=[fault, fault])
    assert resolved(store.values()) == "one"
    assert store.now_s == 1003.0


def test_a_short_function_does_not_wait_for_a_policy() -> None:
    store = Memory({"ssm:/token": "one"}, faults=[Fault.DENIED] * 9)
    failed = failure(lambda: resolved(store.values(), left_s=4.0))
    assert failed.reason is Reason.SECRET_ERROR
    assert len(store.reads) == 2


def test_slow_stores_do_not_take_the_time_of_the_job() -> None:
    steps = {"": {f"S{n}": f"ssm:/{n}" for n in range(9)}}
    store = Memory(dict.fromkeys(steps[""].values(), "value"), call_s=4.0)
    failed = failure(lambda: store.values().resolved(steps, 600))
    assert failed.reason is Reason.SECRET_UNAVAILABLE
    assert store.now_s - 1000 <= WITHIN_S + store.call_s


def test_the_last_value_is_used_while_its_store_is_unavailable(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Memory({"ssm:/token": "one"})
    values = store.values()
    resolved(values)
    store.now_s += AGE_S
    store.faults = [Fault.UNAVAILABLE] * 9
    assert resolved(values) == "one"
    assert len(store.reads) == 2, "no time is lost while there is a value"
    assert "its value of 300 s ago is used" in caplog.text
    store.now_s += STALE_S - AGE_S
    assert failure(lambda: resolved(values)).reason is Reason.SECRET_UNAVAILABLE


def test_a_deleted_secret_is_not_used_any_more() -> None:
    store = Memory({"ssm:/token": "one"})
    values = store.values()
    resolved(values)
    store.now_s += AGE_S
    store.faults = [Fault.ABSENT, *[Fault.UNAVAILABLE] * 4]
    assert failure(lambda: resolved(values)).reason is Reason.SECRET_ERROR
    assert failure(lambda: resolved(values)).reason is Reason.SECRET_UNAVAILABLE


def test_a_reference_of_a_newer_version_is_a_clear_failure() -> None:
    steps = {"": {"A": "vault:kv/a"}}
    assert list(parsed(steps)) == []
    failed = failure(lambda: Memory().values().resolved(steps, 600))
    assert failed.reason is Reason.SECRET_ERROR
    assert "does not know: deploy the function again" in failed.detail


def test_short_values_are_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    store = Memory({"ssm:/token": "abc"})
    with caplog.at_level(logging.WARNING):
        resolved(store.values())
    assert "the value of TOKEN is too short to be masked" in caplog.text
    assert "abc" not in caplog.text


def test_details_of_failures_are_masked() -> None:
    secrets = Secrets({}, Masker(["hunter2"]))
    with pytest.raises(AttemptFailed) as caught, secrets.masked_failures():
        raise AttemptFailed(Reason.OUTPUT_ERROR, "output 'hunter2.txt' is a broken link")
    assert caught.value.detail == f"output '{MASK}.txt' is a broken link"


# ---------------------------------------------------------------------- files


def read(path: Path) -> str:
    return Stores([]).read(parse_reference(f"file:{path}"))


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"x", "x"),
        (b"x\n", "x"),
        (b"x\r\n", "x"),
        (b"x\n\n", "x\n"),
        (b"a\nb\n", "a\nb"),
        (b"", ""),
    ],
)
def test_a_file_is_read_without_its_last_line_end(
    tmp_path: Path, content: bytes, value: str
) -> None:
    (tmp_path / "s").write_bytes(content)
    assert read(tmp_path / "s") == value


def test_files_that_cannot_be_values(tmp_path: Path) -> None:
    def fault(content: bytes | None, name: str = "s") -> Unreadable:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(Unreadable) as caught:
            read(tmp_path / name)
        return caught.value

    assert "UTF-8" in str(fault(b"\xff"))
    assert "UTF-8" in str(fault(b"a\0b"))
    assert str(BYTES_MAX) in str(fault(b"x" * (BYTES_MAX + 3)))
    assert fault(None, "none").fault is Fault.ABSENT
    with pytest.raises(Unreadable, match="not a regular file"):
        read(tmp_path)
    with pytest.raises(Unreadable) as below:
        read(tmp_path / "s" / "below")
    assert below.value.fault is Fault.REFUSED
    assert (tmp_path / "full").write_bytes(b"x" * BYTES_MAX + b"\n")
    assert len(read(tmp_path / "full")) == BYTES_MAX


# ---------------------------------------------------------------------- settings


def test_the_settings_have_references() -> None:
    assert read_settings({}).secrets == {}
    found = read_settings({"ORCHGPU_SECRETS": '{"": {"A": "ssm:/a"}}'}).secrets
    assert [str(one) for one in parsed(found)] == ["ssm:/a"]


@pytest.mark.parametrize("text", ["[]", '{"": "ssm:/a"}', '{"": {"A": 1}}', "{"])
def test_other_settings_are_refused(text: str) -> None:
    with pytest.raises(RunnerError, match="ORCHGPU_SECRETS"):
        read_settings({"ORCHGPU_SECRETS": text})


# ---------------------------------------------------------------------- stores of AWS


@pytest.fixture
def ssm(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Stores, Any]]:
    """The runner's stores, with their client of SSM."""
    for name, value in {
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }.items():
        monkeypatch.setenv(name, value)
    stores = Stores([parse_reference("ssm:/a")])
    client = stores._clients["ssm", None]
    yield stores, client
    client.close()


@pytest.mark.parametrize(
    ("code", "status", "fault", "text"),
    [
        ("ParameterNotFound", 400, Fault.ABSENT, "create it, or correct `secrets:`"),
        ("AccessDeniedException", 400, Fault.DENIED, "allow ssm:GetParameter on it"),
        ("InvalidKeyId", 400, Fault.REFUSED, "cannot be read: GetParameter answered InvalidKeyId"),
    ],
)
def test_refusals_of_a_store_name_the_remedy(
    ssm: tuple[Stores, Any], code: str, status: int, fault: Fault, text: str
) -> None:
    stores, client = ssm
    with Stubber(client) as stub:
        stub.add_client_error("get_parameter", code, "User: arn is not", status)
        with pytest.raises(Unreadable) as caught:
            stores.read(parse_reference("ssm:/a"))
    assert caught.value.fault is fault
    assert text in str(caught.value)


def test_a_store_without_a_way_to_it_is_unavailable(ssm: tuple[Stores, Any]) -> None:
    stores, client = ssm

    def lost(**_: object) -> None:
        raise ConnectTimeoutError(endpoint_url="https://ssm")

    client.meta.events.register("before-call.ssm.GetParameter", lost)
    with pytest.raises(Unreadable, match="a function in a VPC needs an endpoint") as caught:
        stores.read(parse_reference("ssm:/a"))
    assert caught.value.fault is Fault.UNAVAILABLE
    assert "GetParameter: ConnectTimeoutError" in str(caught.value)
