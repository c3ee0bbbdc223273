"""Scripts and handlers as a user writes them: what they can import, read, and leave behind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contract.keys import result_key
from contract.result import Result
from tests.e2e.live import Live, get, until

FOREIGN = ("numpy", "yaml", "PIL", "orchgpu.core", "corekit", "aiohttp", "click")
PROVIDED = ("boto3", "botocore", "orchgpu", "remote_gpu.client")
IMPORTS = f"""
import importlib

def importable():
    found = []
    for name in {[*PROVIDED, *FOREIGN]!r}:
        try:
            importlib.import_module(name)
            found.append(name)
        except ImportError:
            pass
    return found
"""
SCRIPT = (
    "#!/usr/bin/env python3\n"
    + IMPORTS
    + """
import json, os, pathlib
import remote_gpu.client as gpu
gpu.connect().op("noop")
runner = pathlib.Path(f"/proc/{os.getppid()}")
seen = {"imports": importable(), "variables": dict(os.environ)}
try:
    seen["environ"] = (runner / "environ").read_bytes().decode(errors="replace")
except OSError as error:
    seen["environ"] = ""
beside = pathlib.Path(os.environ["TMPDIR"]).parent
seen["beside"] = sorted(os.listdir(beside))
(beside / "left").mkdir(exist_ok=True)
(beside / "left" / "secret").write_text(os.environ["STORAGE_OBJECT_KEY"])
name = os.environ["STORAGE_OBJECT_KEY"] + ".json"
pathlib.Path(os.environ["TMP_OUTPUT_DIR"], name).write_text(json.dumps(seen))
pathlib.Path(os.environ["TMP_OUTPUT_DIR"], "scratch.bin").write_text("x")
"""
)
HANDLER = (
    IMPORTS
    + """
import json
from lambda_functions.work import Work

def look(work: Work) -> None:
    (work.output_folder / f"{work.key}.json").write_text(json.dumps({"imports": importable()}))
"""
)
DEFINITION = """
functions:
  aws:
  - lambda:
      name: NAME
      memory: 512
      timeout: 30
      CODE
      output:
      - {storage_provider: s3, path: NAME-out, suffix: [.json]}
    gpu: {memory: 256, kinds: [cpu]}
    job:
      input:
      - {storage_provider: s3, path: NAME-in}
"""


@pytest.fixture(scope="module", autouse=True)
def _deployed(live: Live) -> None:
    for name, code, file, text in (
        ("looks", "init_script: look.py", "look.py", SCRIPT),
        ("handles", "handler: look.look", "look.py", HANDLER),
    ):
        definition = DEFINITION.replace("NAME", name).replace("CODE", code)
        live.deploy_text(name, definition, {file: text})
    live.start("orchestrator")


def run(live: Live, function: str, key: str) -> tuple[Result, dict[str, Any]]:
    result = live.result(function, live.upload(function, key))
    assert result.state == "SUCCEEDED", result
    written = get(live.client("s3"), f"{function}-out", f"{key}.json")
    assert written is not None
    return result, json.loads(written)


def test_a_script_has_what_lambda_gives_it_and_nothing_of_its_runner(live: Live) -> None:
    for key in ("first", "second"):  # the second in the same, warm environment
        result, seen = run(live, "looks", key)
        assert seen["imports"] == list(PROVIDED)
        assert len(seen["beside"]) == 1, seen["beside"]  # its own folder
        assert not any(name.startswith("AWS_SECRET") for name in seen["variables"])
        # this test may run as root, whom nothing is closed to: what is read there was wiped
        assert "AWS_SECRET_ACCESS_KEY=test" not in seen["environ"]
        assert "AWS_SESSION_TOKEN=test" not in seen["environ"]
        assert result.notes == ["1 file matched no output: scratch.bin"]


def test_a_handler_has_the_same_imports(live: Live) -> None:
    _, seen = run(live, "handles", "work")
    assert seen["imports"] == list(PROVIDED)


def test_no_envelope_is_left_of_a_finished_job(live: Live) -> None:
    result, _ = run(live, "handles", "gone")
    live.quiet("handles")
    s3 = live.client("s3")
    assert get(s3, "handles-intermediate", result_key(result.job_id)) is not None

    def none_staged() -> bool:
        place = {"Bucket": "handles-intermediate", "Prefix": f"staging/handles/{result.job_id}/"}
        return not s3.list_objects_v2(**place).get("Contents")

    until("no envelope", none_staged)
