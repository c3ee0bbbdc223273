"""Chains of SCAR's and OSCAR's own files, unchanged; and what `workflows:` adds to the same files.

The definitions have the form of published examples: SCAR's audio and video workflow (three
functions over two paths, one of them on AWS Batch for its GPU), and two services of an OSCAR
cluster that a bucket chains.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pytest

from contract.run import run_id, run_result_key
from tests.e2e.live import Live, get, until

pytestmark = pytest.mark.timeout(300)

SCAR = """\
functions:
  aws:
  - lambda:
      name: NAME-split
      container:
        image: example/ffmpeg:4.1
      init_script: split.sh
      execution_mode: lambda-batch
      memory: 1024
      timeout: 900
      log_level: INFO
      input:
      - storage_provider: s3
        path: NAME/start
      output:
      - storage_provider: s3
        path: NAME/video
        suffix:
        - avi
      - storage_provider: s3
        path: NAME/audio
        suffix:
        - wav
  - lambda:
      name: NAME-subtitles
      container:
        image: example/subtitles:mini
      init_script: words.sh
      execution_mode: lambda-batch
      memory: 1024
      timeout: 900
      input:
      - storage_provider: s3
        path: NAME/audio
      output:
      - storage_provider: s3
        path: NAME/result
  - lambda:
      name: NAME-objects
      container:
        image: example/objects:cudnn
      init_script: words.sh
      execution_mode: batch
      memory: 128
      input:
      - storage_provider: s3
        path: NAME/video
      output:
      - storage_provider: s3
        path: NAME/result
    batch:
      vcpus: 4
      memory: 12288
      enable_gpu: true
      compute_resources:
        max_v_cpus: 12
        instance_types:
        - g3s.xlarge
"""
OSCAR = """\
functions:
  oscar:
  - oscar-cluster:
      name: NAME-faces
      memory: 1Gi
      cpu: '1.0'
      image: ghcr.io/example/blurry-faces
      script: faces.sh
      log_level: CRITICAL
      input:
      - storage_provider: minio.default
        path: NAME/input
      output:
      - storage_provider: minio.default
        path: NAME/frames
  - oscar-cluster:
      name: NAME-read
      memory: 2Gi
      cpu: '1.0'
      enable_gpu: true
      image: ghcr.io/example/read
      script: words.sh
      environment:
        variables: {LANGUAGE: en}
      input:
      - storage_provider: minio.default
        path: NAME/frames
      output:
      - storage_provider: minio.default
        path: NAME/output
storage_providers:
  minio:
    default: {endpoint: 'https://minio.example.org', access_key: a, secret_key: b}
"""
#: Their scripts, as SCAR's and OSCAR's are: INPUT_FILE_PATH in, TMP_OUTPUT_DIR out.
SCRIPTS = {
    "split.sh": """#!/bin/sh
name=$(basename "$INPUT_FILE_PATH" .mp4)
echo "$(cat "$INPUT_FILE_PATH") seen" > "$TMP_OUTPUT_DIR/$name.avi"
echo "$(cat "$INPUT_FILE_PATH") heard" > "$TMP_OUTPUT_DIR/$name.wav"
""",
    "faces.sh": """#!/bin/sh
for n in 1 2; do echo "$(cat "$INPUT_FILE_PATH") $n" > "$TMP_OUTPUT_DIR/$n.png"; done
""",
    "words.sh": """#!/bin/sh
echo "$(cat "$INPUT_FILE_PATH") run=${ORCHGPU_RUN:-none}" \\
  > "$TMP_OUTPUT_DIR/$(basename "$INPUT_FILE_PATH").txt"
""",
}
#: Of each form: the file, the first input, the functions, and key → line of the last outputs.
FORMS = {
    "scar": (
        SCAR,
        ("start", "film.mp4"),
        ("split", "subtitles", "objects"),
        {"result/film.avi.txt": "word seen", "result/film.wav.txt": "word heard"},
    ),
    "oscar": (
        OSCAR,
        ("input", "photo.jpg"),
        ("faces", "read"),
        {"output/1.png.txt": "word 1", "output/2.png.txt": "word 2"},
    ),
}


@pytest.fixture(scope="module", autouse=True)
def _orchestrator(live: Live) -> Iterator[None]:
    live.start("orchestrator")
    yield
    live.kill("orchestrator")


def notified(live: Live, bucket: str) -> dict[str, str]:
    """Prefix → the queue that S3 notifies."""
    found = live.client("s3").get_bucket_notification_configuration(Bucket=bucket)
    rules = {
        rule["Value"]: one["QueueArn"].rsplit(":", 1)[-1]
        for one in found.get("QueueConfigurations", ())
        for rule in one["Filter"]["Key"]["FilterRules"]
        if rule["Name"].lower() == "prefix"
    }
    return {prefix.strip("/"): queue for prefix, queue in rules.items()}


def lines_of(live: Live, bucket: str, keys: Iterable[str]) -> dict[str, str]:
    s3 = live.client("s3")
    return {key: until(key, partial(get, s3, bucket, key)).decode().strip() for key in keys}


@pytest.mark.parametrize("form", FORMS)
def test_a_chained_file_runs_by_notifications_as_before(live: Live, form: str) -> None:
    text, (place, name), steps, wanted = FORMS[form]
    live.deploy_text(form, text.replace("NAME", form), SCRIPTS)
    inner = set(notified(live, form)) - {place}
    assert inner == {"scar": {"video", "audio"}, "oscar": {"frames"}}[form]
    s3 = live.client("s3")
    s3.put_object(Bucket=form, Key=f"{place}/{name}", Body=b"word")
    assert lines_of(live, form, wanted) == {
        key: f"{line} run=none" for key, line in wanted.items()
    }, "each step is a job of its own"
    live.quiet(*(f"{form}-{step}" for step in steps))
    assert json.loads(live.orchgpu("jobs", "--json"))["jobs"], "they are listed as jobs"
    # a file that somebody puts between two steps starts the next one, as in SCAR
    between = min(inner)
    s3.put_object(Bucket=form, Key=f"{between}/own.png", Body=b"own")
    last = next(iter(wanted)).partition("/")[0]
    assert lines_of(live, form, [f"{last}/own.png.txt"]) == {f"{last}/own.png.txt": "own run=none"}
    live.quiet(*(f"{form}-{step}" for step in steps))


@pytest.mark.parametrize("form", FORMS)
def test_a_workflow_makes_the_same_file_one_run(live: Live, form: str) -> None:
    """One key more for a job a file, as in the chain; without it a step gets all files at once."""
    text, (place, name), steps, wanted = FORMS[form]
    whole = f"{form}-whole"
    names = [f"{whole}-{step}" for step in steps]
    same = text.replace(
        "NAME/frames\n      output", "NAME/frames\n        each: true\n      output"
    )
    same = same.replace("NAME", whole) + f"workflows:\n  {whole}: {{steps: [{', '.join(names)}]}}\n"
    live.deploy_text(whole, same, SCRIPTS)
    assert notified(live, whole) == {place: f"{whole}-runs"}, "the orchestrator delivers the rest"
    run, result = run_of(live, whole, f"{place}/{name}", names[0])
    assert [one["state"] for one in result["steps"]] == ["DONE"] * len(steps)
    assert sorted(file["key"] for file in result["files"]) == sorted(wanted)
    assert lines_of(live, whole, wanted) == {
        key: f"{line} run={run}" for key, line in wanted.items()
    }
    # a file that somebody puts between two steps is of no run: it starts nothing
    for inner in ("video", "audio", "frames"):
        live.client("s3").put_object(Bucket=whole, Key=f"{inner}/own.png", Body=b"own")
    run_of(live, whole, f"{place}/again-{name}", names[0])
    live.quiet(*names)
    written = live.client("s3").list_objects_v2(Bucket=whole).get("Contents", ())
    assert not [one["Key"] for one in written if one["Key"].endswith("own.png.txt")]


def run_of(live: Live, bucket: str, key: str, first: str) -> tuple[str, dict[str, Any]]:
    """The run of a new input, and its end."""
    s3 = live.client("s3")
    made = s3.put_object(Bucket=bucket, Key=key, Body=b"word")
    run = run_id(bucket, key, made["VersionId"], bucket)
    body = until(f"the end of {run}", lambda: get(s3, f"{first}-intermediate", run_result_key(run)))
    result: dict[str, Any] = json.loads(body)
    assert result["state"] == "SUCCEEDED", result
    return run, result
