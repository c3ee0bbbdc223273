"""Parsing: the values of all keys, and every kind of bad input with its exact message."""
# ruff: noqa: E501  (one line per message, as people see it)

import pytest

from corekit.errors import AppError, ErrorCode
from fdl.model import Function, Path, Storage
from fdl.parse import parse
from fdl.schema.schema import FAULTS_MAX
from fdl.text.nodes import Location
from gpu_scheduler.model import Batch, DeviceKind, Placement, Request, Sharing

WHOLE = """\
functions:
  aws:
  - lambda:
      name: gpu-blast
      memory: 3072
      timeout: 900
      runtime: image
      init_script: blast.sh
      container:
        image: 123456789012.dkr.ecr.us-east-1.amazonaws.com/blast
        create_image: false
        environment:
          Variables: {LEVEL: 010, DEBUG: on, VERSION: 1.10, EMPTY: }
      input:
      - storage_provider: s3
        path: mid/blast
      output:
      - storage_provider: s3.default
        path: out/results/
        suffix: [.tsv]
        prefix: hits-
    iam: {role: "arn:aws:iam::123456789012:role/lambda"}
    gpu:
      count: 2
      memory: 4GiB
      kinds: [cuda, cpu]
      models: any
      compute: {guarantee: 50%, limit: 80}
      sharing: exclusive
      placement: same_host
      priority: -3
      max_wait: 10m
      middleware: rcuda
      x-note: mine
    job:
      input: my-input/seqs
      queue: blast-q
      attempts: 5
x-free: {anything: [at, all]}
"""


@pytest.fixture(name="whole")
def _whole() -> Function:
    (function,) = parse(WHOLE).functions.aws
    return function


def test_the_lambda_block(whole: Function) -> None:
    assert (whole.name, whole.function.memory_mib) == ("gpu-blast", 3072)
    assert whole.function.output == (
        Storage(
            path=Path(bucket="out", prefix="results"),
            storage_provider="s3.default",
            suffixes=(".tsv",),
            prefixes=("hits-",),
        ),
    )


def test_the_input_of_a_job_is_the_users_and_scars_is_the_intermediate_bucket(
    whole: Function,
) -> None:
    assert whole.user_input == (Storage(path=Path(bucket="my-input", prefix="seqs")),)
    assert whole.intermediate == Path(bucket="mid", prefix="blast")


def test_queues_have_the_written_name_or_the_functions(whole: Function) -> None:
    assert whole.queues == ("blast-q", "gpu-blast-dlq", "gpu-blast-done")


def test_the_gpu_block_is_a_request_to_the_scheduler(whole: Function) -> None:
    assert whole.gpu is not None
    assert whole.gpu.request == Request(
        count=2,
        memory_mib=4096,
        kinds=(DeviceKind.CUDA, DeviceKind.CPU),
        compute_guarantee_pct=50,
        compute_limit_pct=80,
        sharing=Sharing.EXCLUSIVE,
        placement=Placement.SAME_HOST,
        priority=-3,
        max_wait_s=600.0,
        middleware="rcuda",
    )


def test_values_of_variables_stay_as_written() -> None:
    variables = parse(WHOLE).functions.aws[0].function.container.variables
    assert variables == {"LEVEL": "010", "DEBUG": "on", "VERSION": "1.10", "EMPTY": ""}


def test_bare_blocks_have_all_defaults() -> None:
    (function,) = parse("functions: {aws: [{lambda: {name: a, input: []}, gpu: }]}").functions.aws
    assert function.queued
    assert function.gpu is not None
    assert function.gpu.request.count == 1


def test_without_our_blocks_it_is_a_plain_function() -> None:
    (function,) = parse("functions: {aws: [{lambda: {name: a}}]}").functions.aws
    assert not function.queued


def test_a_scar_input_is_the_users_input_unless_job_has_one() -> None:
    text = "functions: {aws: [{lambda: {name: Ab_c, input: [{path: inn/x}]}, gpu: {}}]}"
    (function,) = parse(text).functions.aws
    assert function.user_input[0].path == Path(bucket="inn", prefix="x")
    assert function.intermediate == Path(bucket="ab-c-intermediate")


def test_keys_have_locations() -> None:
    document = parse(WHOLE)
    assert document.location("functions.aws[0].lambda.memory") == Location(5, 7)
    assert document.location("functions.aws[0].lambda.nothing.there") == Location(3, 5)


ONE = "functions:\n  aws:\n  - lambda:\n      name: a\n"


def test_an_error_shows_its_line_with_a_caret() -> None:
    with pytest.raises(AppError) as caught:
        parse(ONE + "      memmory: 4096\n", "f.yaml")
    assert caught.value.code is ErrorCode.INVALID
    assert caught.value.message.endswith("\n  5 |       memmory: 4096\n    |       ^")


def test_all_errors_are_reported_together() -> None:
    text = (
        ONE
        + "      memory: 1\n      memmory: 2\n      input: [{path: B}, {path: abc}, 3]\n    gpu: {count: 0}\n"
    )
    with pytest.raises(AppError) as caught:
        parse(text, "f.yaml")
    places = [(fault["line"], fault["column"]) for fault in caught.value.details["faults"]]
    assert places == [(5, 15), (6, 7), (7, 22), (7, 39), (8, 18)]
    assert caught.value.details["line"] == 5
    assert caught.value.message.count(": error: ") == 5


def test_a_file_full_of_errors_reports_the_first_ones() -> None:
    keys = "".join(f"      k{n}: 1\n" for n in range(10_000))
    with pytest.raises(AppError) as caught:
        parse(ONE + keys, "f.yaml")
    assert caught.value.message.count(": error: ") == FAULTS_MAX


def test_long_lines_are_cut_around_the_place() -> None:
    with pytest.raises(AppError) as caught:
        parse("functions: {aws: [" + " " * 5000 + "{lambada: 1}]}")
    assert max(len(line) for line in caught.value.message.splitlines()) < 120


def test_rules_of_batches() -> None:
    text = "    gpu: {batch: {wait_ms: 5}, preempts: true, preemptible: true, workload: w}\n"
    (function,) = parse(ONE + text, "f.yaml").functions.aws
    assert function.gpu is not None
    request = function.gpu.request
    assert request.batch == Batch(joins=True, wait_ms=5, size_max=64)
    assert (request.preempts, request.preemptible, request.workload) == (True, True, "w")


def test_versions_of_a_request() -> None:
    """One version exactly, as written (1.10 is not 1.1), or bounds."""
    text = "    gpu: {requires: {onnxruntime: 1.10, driver: '>=550, <600', runtime: 12}}\n"
    (function,) = parse(ONE + text, "f.yaml").functions.aws
    assert function.gpu is not None
    assert function.gpu.request.requires == (
        "onnxruntime==1.10",
        "driver>=550,<600",
        "runtime==12",
    )
