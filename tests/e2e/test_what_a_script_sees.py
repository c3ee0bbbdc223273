"""Scripts and handlers as a user writes them: what they can import, read, and leave behind."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
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
#: Prints all secrets, in one piece and in two, and ends as its input's name states.
PRINTER = """#!/usr/bin/env python3
import hashlib, json, os, pathlib, sys, time
values = {name: os.environ[name] for name in ("FROM_FILE", "FROM_SSM", "FROM_MANAGER")}
print("all of it:", dict(os.environ))
for value in values.values():
    sys.stdout.write(value[:5])
    sys.stdout.flush()
    time.sleep(0.02)
    print(value[5:], file=sys.stdout, flush=True)
    print(value.encode(), file=sys.stderr)
name = os.environ["STORAGE_OBJECT_KEY"]
out = pathlib.Path(os.environ["TMP_OUTPUT_DIR"])
seen = {variable: hashlib.sha256(value.encode()).hexdigest() for variable, value in values.items()}
(out / f"{name}.json").write_text(json.dumps(seen))
(out / f"{values['FROM_SSM']}.unmatched").write_text("x")
sys.exit(3 if name == "fails" else 0)
"""
SECRETS = """
    secrets:
      FROM_FILE: file:token
      FROM_SSM: ssm:/keeps/token
      FROM_MANAGER: secretsmanager:keeps/all#token
"""
VALUES = {
    "FROM_FILE": "1f-the-file-holds-this-one",
    "FROM_SSM": "2p-the-parameter-holds-this-one",
    "FROM_MANAGER": "3s-the-secret-holds-this-one",
}
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


def _stores(line: bytes) -> bool:
    """Whether a line of the cloud's state is that of a parameter or secret."""
    return line.startswith((b'["parameter/', b'["secret/'))


def _holders(folder: Path, values: Iterable[str]) -> list[str]:
    """The files below a folder with one of the values, also inside of archives."""
    wanted = [value.encode() for value in values]
    found = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink()):
        data = path.read_bytes()
        if path.name == "cloud.jsonl":
            data = b"\n".join(line for line in data.splitlines() if not _stores(line))
        if data.startswith(b"PK\x03\x04"):
            with zipfile.ZipFile(path) as archive:
                data += b"".join(archive.read(name) for name in archive.namelist())
        if any(value in data for value in wanted):
            found.append(str(path.relative_to(folder)))
    return found


@pytest.fixture(scope="module")
def keeps(live: Live) -> None:
    """A function whose secrets are in all three kinds of places."""
    for reference, value in (
        ("ssm:/keeps/token", VALUES["FROM_SSM"]),
        ("secretsmanager:keeps/all", json.dumps({"token": VALUES["FROM_MANAGER"]})),
    ):
        file = live.path / "value"
        file.write_text(f"{value}\n")
        shown = live.orchgpu("secret", "put", reference, "--file", str(file))
        assert shown == f"{reference}: stored\n"
        file.unlink()
    text = DEFINITION.replace("    job:\n", "    job:\n      attempts: 2\n")
    text = text.replace("NAME", "keeps").replace("CODE", "init_script: print.py")
    files = {"print.py": PRINTER, "token": VALUES["FROM_FILE"] + "\n"}
    live.deploy_text("keeps", text.rstrip() + SECRETS, files)


@pytest.mark.usefixtures("keeps")
def test_a_secret_reaches_the_script_and_no_other_place(live: Live) -> None:
    result, seen = run(live, "keeps", "works")
    assert seen == {name: sha256(value.encode()).hexdigest() for name, value in VALUES.items()}
    assert result.notes == ["1 file matched no output: ***.unmatched"]
    assert "'FROM_SSM': '***'" in result.log_tail
    failed = live.result("keeps", live.upload("keeps", "fails"))
    assert (failed.state, failed.reason) == ("FAILED", "EXIT_NONZERO")
    assert "'FROM_SSM': '***'" in failed.log_tail
    live.quiet("keeps")
    shown = [live.orchgpu(*words) for words in (("job", failed.job_id), ("logs", "keeps"))]
    plan = live.orchgpu("plan", str(live.path / "keeps" / "fdl.yaml"), "--json")
    assert not any(value in text for text in (*shown, plan) for value in VALUES.values())
    assert _holders(live.path, VALUES.values()) == ["keeps/token"]


@pytest.mark.usefixtures("keeps")
def test_a_missing_secret_fails_the_job_once_and_names_itself(live: Live) -> None:
    live.orchgpu("secret", "rm", "ssm:/keeps/token")
    # another environment has not read it
    live.client("lambda").update_function_configuration(FunctionName="keeps", Description="new")
    result = live.result("keeps", live.upload("keeps", "gone"))
    assert (result.state, result.reason, result.attempt) == ("FAILED", "SECRET_ERROR", 1)
    assert result.detail.startswith("secret FROM_SSM (ssm:/keeps/token) does not exist")
