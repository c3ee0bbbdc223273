"""Reads of the runner's credentials by another process of the same user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
NOBODY = 65534
SECRET = "wJalrXUtnFEMI"
#: Runs as an unprivileged user, so that no capability opens what its user cannot; its child is the
#: script: another process of that user, which looks at its parent.
PROGRAM = f"""
import ctypes, json, os, sys
sys.path.insert(0, {str(ROOT)!r})
from lambda_functions.gpu_runner import sandbox

if os.geteuid() == 0:
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as after an exec: a change of user had cleared it
kept_in_memory = os.environ["AWS_SECRET_ACCESS_KEY"] + "-lease"
if sys.argv[1] == "hidden":
    sandbox.hide()
found = {{"environ": os.environ.get("AWS_SECRET_ACCESS_KEY"), "REGION": os.environ["AWS_REGION"]}}
read, write = os.pipe()
parent = os.getpid()
if os.fork() == 0:
    tried = {{}}
    for name in ("environ", "maps", "mem", "fd", "auxv"):
        try:
            path = f"/proc/{{parent}}/{{name}}"
            if name == "fd":
                os.listdir(path)
            else:
                with open(path, "rb", buffering=0) as file:
                    name != "mem" and file.read(1)
            tried[name] = True
        except OSError:
            tried[name] = False
    os.write(write, json.dumps(tried).encode())
    os._exit(0)
os.wait()
print(json.dumps(found | {{"tried": json.loads(os.read(read, 4096))}}))
"""


def output(program: str, *words: str, **environment: str) -> bytes:
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60, env=environment)
    return done.stdout


def outcome(word: str) -> dict[str, Any]:
    own = {"AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
    return dict(json.loads(output(PROGRAM, word, **{**os.environ, **own})))


def test_a_process_of_the_same_user_reads_nothing_of_the_runner() -> None:
    shown = outcome("shown")
    assert all(shown["tried"].values()), "this kernel hides it anyway: the test shows nothing"
    hidden = outcome("hidden")
    assert not any(hidden["tried"].values()), hidden
    assert hidden["environ"] is None
    assert hidden["REGION"] == "us-east-1"


def test_the_initial_environment_block_has_no_credentials() -> None:
    program = (
        "import sys; from pathlib import Path\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from lambda_functions.gpu_runner import sandbox\n"
        "before = Path('/proc/self/environ').read_bytes()\n"
        "sandbox.wipe_block(sandbox.CREDENTIALS)\n"
        "after = Path('/proc/self/environ').read_bytes()\n"
        "print(len(before) == len(after))\n"
        "sys.stdout.flush(); sys.stdout.buffer.write(after)"
    )
    environment = {
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": SECRET * 3,
        "OTHER": "kept",
        "AWS_ACCESS_KEY_ID": "",
        "NOT_AWS_SECRET_ACCESS_KEY": "kept too",
    }
    shown = output(program, **environment)
    assert shown.startswith(b"True")
    assert SECRET.encode() not in shown
    assert b"OTHER=kept\0" in shown
    assert b"NOT_AWS_SECRET_ACCESS_KEY=kept too\0" in shown


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"])
def test_an_existing_client_keeps_its_credentials(name: str) -> None:
    """Two processes as the handler makes them: the client first, then the hiding."""
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from lambda_functions.gpu_runner import sandbox\n"
        "from lambda_functions.gpu_runner.storage import s3 as storage\n"
        "s3 = storage.make_client(); sandbox.hide()\n"
        "found = s3._request_signer._credentials\n"
        "print(found.secret_key, found.token)"
    )
    environment = {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "no",
        "AWS_SESSION_TOKEN": "no",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        name: SECRET,
    }
    assert SECRET in output(program, **environment).decode()
