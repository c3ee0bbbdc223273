"""One table of request options: every field has one, and reads its own example."""

from __future__ import annotations

from typing import Any

import pytest

from corekit.errors import AppError
from gpu_scheduler.model import DeviceKind, Placement, Request, Sharing
from gpu_scheduler.request_options import REQUEST_OPTIONS, RequestOption, parse_option, request_of


def test_every_field_of_a_request_has_exactly_one_word() -> None:
    fields = [word.field for word in REQUEST_OPTIONS]
    fields += [word.percent_field for word in REQUEST_OPTIONS if word.percent_field]
    fields += ["data_sets"]  # of a deploy alone, which finds their digests
    assert sorted(fields) == sorted(Request.__struct_fields__)
    flags = [word.flag for word in REQUEST_OPTIONS] + [
        word.short for word in REQUEST_OPTIONS if word.short
    ]
    assert len(set(flags)) == len(flags)


@pytest.mark.parametrize("word", REQUEST_OPTIONS, ids=lambda word: word.key)
def test_a_key_is_the_field_without_its_unit(word: RequestOption) -> None:
    units = ("", "_mib", "_pct", "_s")
    assert word.field in [word.key + unit for unit in units] or word.key == "lease_length"


@pytest.mark.parametrize(
    "word", [w for w in REQUEST_OPTIONS if not w.switch], ids=lambda word: word.key
)
def test_an_example_is_read(word: RequestOption) -> None:
    request_of({word.key: parse_option(word, word.example)})


def test_words_make_a_request() -> None:
    texts = {
        "count": "2",
        "kinds": "cuda,cpu",
        "memory": "4GiB",
        "compute_guarantee": "12.5 %",
        "sharing": "Exclusive",
        "placement": "spread",
        "lease_length": "1.5m",
    }
    values = {
        word.key: parse_option(word, texts[word.key])
        for word in REQUEST_OPTIONS
        if word.key in texts
    }
    assert request_of(values) == Request(
        count=2,
        kinds=(DeviceKind.CUDA, DeviceKind.CPU),
        memory_mib=4096,
        compute_guarantee_pct=12.5,
        sharing=Sharing.EXCLUSIVE,
        placement=Placement.SPREAD,
        lease_s=90.0,
    )
    assert request_of({"memory": None}) == Request()


def test_constraints_are_separated_by_semicolons() -> None:
    requires = next(word for word in REQUEST_OPTIONS if word.key == "requires")
    text = "ONNXRuntime >=1.10, <1.13 ; driver==550.54.15"
    assert request_of({"requires": parse_option(requires, text)}) == Request(
        requires=("onnxruntime>=1.10,<1.13", "driver==550.54.15")
    )


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("12.5%", {"memory_pct": 12.5}),
        ("30 units", {"memory_mib": 7680}),
        ("1 unit", {"memory_mib": 256}),
        ("512", {"memory_mib": 512}),
    ],
)
def test_memory_is_a_size_or_a_part_of_the_device(text: str, fields: dict[str, Any]) -> None:
    memory = next(word for word in REQUEST_OPTIONS if word.key == "memory")
    assert request_of({"memory": parse_option(memory, text)}) == Request(**fields)


@pytest.mark.parametrize(
    ("key", "text", "why"),
    [
        ("count", "two", "--count: 'two' is not an integer"),
        ("kinds", "cuda,gpu", "--kinds: 'gpu' is not one of cuda, opencl, cpu, vpu"),
        ("memory", "4 parsecs", "--memory: '4 parsecs' is not a memory size"),
        ("memory", "100.1%", "--memory: '100.1%' is more than a whole device"),
        ("memory", "12.55%", "--memory: '12.55%' is not a percentage"),
        ("memory_max", "50%", "--memory-max: '50%' is not a memory size"),
        ("batch", "soon", "--batch: 'soon' is not a wait in ms with a number of items"),
        ("batch", "5:0", "--batch: batch: size_max 0 must lie in 1…1024"),
        ("requires", "onnx", "--requires: 'onnx' is not a name with versions"),
        ("models", "A100,", "--models: the value is empty"),
        ("max_wait", "soon", "--max-wait: 'soon' is not a duration"),
    ],
)
def test_an_invalid_value_is_refused_by_its_flag(key: str, text: str, why: str) -> None:
    word = next(word for word in REQUEST_OPTIONS if word.key == key)
    with pytest.raises(AppError, match="^" + why):
        parse_option(word, text)
