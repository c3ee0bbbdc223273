"""Programs of the operator's list: fixed commands, plain words, a certain end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operations.plugins.exec import Exec
from remote_gpu.client.transport.readiness import readable
from remote_gpu.wire.errors import OpFailed
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context
from remote_gpu.worker.programs import programs
from remote_gpu.worker.programs.programs import (
    CompletedProgram,
    ListedProgram,
    parse_program,
    run_program,
)

SHELL = "/bin/sh"


def script(text: str) -> list[str]:
    return [SHELL, "-c", text]


def run(
    text: str, stdin: bytes = b"", timeout_s: float = 60.0, quota: Quota | None = None
) -> CompletedProgram:
    return run_program(script(text), memoryview(stdin), timeout_s, quota or Quota())


def until_gone(pid: int) -> None:
    """Its pidfd is readable once it has ended, whoever reaps it."""
    with contextlib.suppress(ProcessLookupError), open(os.pidfd_open(pid), "rb") as pidfd:
        assert readable((pidfd,), 60)


def test_streams_and_status() -> None:
    quota = Quota()
    ran = run(
        "cat; echo to the operator >&2; exit 3", os.urandom(1000).hex().encode() * 500, quota=quota
    )
    assert (len(ran.stdout), ran.stderr, ran.status) == (1_000_000, b"to the operator\n", 3)
    assert quota.used_bytes == 0
    assert run("kill -9 $$").status == -signal.SIGKILL


def test_a_programs_environment_has_nothing_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no NVIDIA device but its lease's: CUDA shows all where nobody says which."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1")
    monkeypatch.setenv("CUDA_CACHE_PATH", "/of/the/host")
    ran = run("env | grep -v ^_; ls -A; pwd")
    *lines, folder = ran.stdout.decode().split()
    assert folder.startswith(tempfile.gettempdir())
    variables = dict(line.split("=", 1) for line in lines)
    assert variables.pop("CUDA_VISIBLE_DEVICES") == "GPU-1"
    assert set(variables) <= {"PWD", "OLDPWD", "SHLVL"}  # the shell's own
    assert not Path(folder).exists()


def test_a_programs_folder_is_removed() -> None:
    folder = run("mkdir -p a/b; echo x > a/b/c; ln -s / a/root; ln -s a b; pwd").stdout
    assert not Path(folder.decode().strip()).exists()
    assert Path("/etc").exists()


def test_a_program_may_ignore_its_input() -> None:
    assert run("exec true", b"x" * 1_000_000).status == 0


def test_a_program_over_its_limits_is_ended() -> None:
    with pytest.raises(OpFailed, match="ETIMEDOUT"):
        run("sleep 600 & sleep 600", timeout_s=0.05)
    with pytest.raises(OpFailed, match="ENOMEM"):
        run("cat /dev/zero", quota=Quota(1 << 20))


def test_the_output_of_a_program_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "OUTPUT_BYTES_MAX", 1000)
    with pytest.raises(OpFailed, match="E2BIG"):
        run("cat /dev/zero")


def test_background_processes_of_a_program_are_killed() -> None:
    ran = run("setsid sleep 600 >/dev/null 2>&1 & echo $!")
    until_gone(int(ran.stdout))


def test_a_program_ends_with_its_worker(tmp_path: Path) -> None:
    """SIGKILL, as a lease ends: the worker can do nothing any more."""
    note = tmp_path / "pids"
    os.mkfifo(note)
    text = f"sleep 600 & echo $$ $! > {note}; wait"
    code = (
        "from remote_gpu.worker.programs.programs import run_program\n"
        "from remote_gpu.worker.memory.quota import Quota\n"
        f"run_program({script(text)!r}, memoryview(b''), 600.0, Quota())\n"
    )
    root = Path(__file__).resolve().parents[4]
    worker = subprocess.Popen([sys.executable, "-c", code], cwd=root)
    with open(os.open(note, os.O_RDWR), "rb", 0) as pids:
        assert readable((pids,), 60)
        told = pids.read(100).split()
    worker.kill()
    worker.wait()
    for pid in told:
        until_gone(int(pid))


def test_a_warden_stops_at_any_moment(tmp_path: Path) -> None:
    """SIGTERM up to 0.2 ms after the program's start, while the warden begins to wait for it."""
    for delay_us in range(0, 200, 5):
        warden = [str(programs._WARDEN), str(os.getpid()), "2", str(tmp_path / "folder")]
        process = subprocess.Popen([sys.executable, "-I", "-S", *warden, "/bin/sleep", "600"])
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not children.read_text():
            pass
        sent_s = time.monotonic() + delay_us / 1e6
        while time.monotonic() < sent_s:
            pass
        process.terminate()
        assert process.wait(60) == 0


def test_placeholders_take_plain_words() -> None:
    program = parse_program(f"{SHELL} -c 'echo {{what}}' --db={{db}} {{what}}")
    assert program.places == ("what", "db")
    filled = program.filled({"what": "a.b", "db": "nr-1"})
    assert filled == [SHELL, "-c", "echo a.b", "--db=nr-1", "a.b"]
    good = {"what": "x", "db": "y"}
    for words in ({}, {"what": "x"}, good | {"more": "x"}, good | {"db": 5}):
        with pytest.raises(OpFailed, match="EINVAL"):
            program.filled(words)


@settings(max_examples=40)
@given(
    st.text(st.characters(codec="utf-8"), max_size=200)
    | st.sampled_from(["-x", "a b", "a/b", "$x", "a;b", "", "a\n", ".", ".."])
)
def test_words_cannot_be_options_paths_or_shell_syntax(word: str) -> None:
    try:
        filled = ListedProgram(command=("/x", "{w}")).filled({"w": word})[1]
    except OpFailed as error:
        assert error.code == "EINVAL"  # noqa: PT017 - either way is right
    else:
        assert filled == word
        assert not word.startswith("-")
        assert word not in (".", "..")
        assert not set(word) & set(" \t\n/;&|<>$`'\"\\*?(){}[]~#!%\0")


@pytest.mark.parametrize("text", ["", "sh", "bin/sh", "/nothing/here", "/etc/passwd", "/bin", "'"])
def test_an_invalid_program_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_program(text)


def test_the_operation() -> None:
    listed = Context(programs={"count": parse_program(f"{SHELL} -c 'wc -c; echo {{word}}'")})
    exec_ = Exec()
    call = {"program": "count", "words": {"word": "done"}}
    values, outputs = exec_.run(listed, call, [memoryview(b"12345")])
    assert values == {"status": 0}
    assert b"".join(outputs).split() == [b"5", b"done"]
    for args, code in (
        ({"program": "sh"}, "ENOENT"),
        ({}, "EINVAL"),
        ({"program": "count"}, "EINVAL"),
        (call | {"words": 5}, "EINVAL"),
        (call | {"timeout_s": 0}, "EINVAL"),
        (call | {"env": {}}, "EINVAL"),
    ):
        with pytest.raises(OpFailed, match=code):
            exec_.run(listed, args, [])
    with pytest.raises(OpFailed, match="it has none"):
        exec_.run(Context(), call, [])
