"""Real scripts in real process groups: their ends, and that no process of them is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from contract.result import LOG_TAIL_BYTES_MAX
from contract.states import Reason
from lambda_functions.gpu_runner.errors import AttemptFailed
from lambda_functions.gpu_runner.script import reaper
from lambda_functions.gpu_runner.script.process import (
    Ending,
    LogTail,
    Outcome,
    Signals,
    command_of,
    run,
)
from remote_gpu.client.transport.readiness import readable
from tests.leaks import open_files

Write = Callable[..., Path]
ROOT = Path(__file__).parents[3]


def run_script(
    path: Path,
    *,
    within_s: float = 30.0,
    grace_s: float = 0.1,
    signals: Signals | None = None,
    variables: Mapping[str, str] | None = None,
) -> Outcome:
    return run(
        command_of(path),
        variables=dict(variables or {}) | {"PATH": os.environ["PATH"]},
        folder=path.parent,
        deadline_s=time.monotonic() + within_s,
        grace_s=grace_s,
        signals=signals,
    )


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def pid_in(path: Path) -> int:
    """The process id that a script writes there; waits for it."""
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        if path.exists() and (text := path.read_text()).endswith("\n"):
            return int(text)
        os.sched_yield()
    raise AssertionError(f"no {path}")


@pytest.mark.parametrize("status", [0, 1, 3, 127, 255])
def test_the_exit_status_is_the_scripts_own(script: Write, status: int) -> None:
    outcome = run_script(script(f"echo out; echo err >&2; exit {status}"))
    assert (outcome.ending, outcome.status) == (Ending.OWN, status)
    assert outcome.exit_code == status
    assert outcome.log_tail == "out\nerr\n"
    assert outcome.started_s <= outcome.ended_s


def test_a_scripts_own_signal_is_distinguished(script: Write) -> None:
    outcome = run_script(script("kill -SEGV $$"))
    assert (outcome.ending, outcome.status) == (Ending.OWN, -signal.SIGSEGV)
    assert outcome.exit_code == 128 + signal.SIGSEGV


@pytest.mark.parametrize("mode", [0o755, 0o644])
def test_bash_syntax_works_under_a_bash_shebang(script: Write, mode: int) -> None:
    text = '#!/bin/bash\na=(one two); [[ ${a[1]} == two ]] && echo "${a[@]}"'
    assert run_script(script(text, mode)).log_tail == "one two\n"


@pytest.mark.parametrize("mode", [0o755, 0o644])
def test_a_shebang_argument_stays_one_argument(script: Write, mode: int) -> None:
    assert run_script(script("#! /bin/sh -e\nfalse\necho no\n", mode)).status == 1
    env = "#!/usr/bin/env -S python3 -I\nprint('py')\n"
    assert run_script(script(env, mode)).log_tail == "py\n"


def test_without_a_shebang_it_is_a_shell_script(script: Write) -> None:
    assert command_of(script("echo x", 0o644))[0] == "/bin/sh"


def test_a_program_needs_no_shebang(script: Write) -> None:
    path = script(Path("/bin/true").read_bytes())
    assert run_script(path).status == 0
    path.chmod(0o644)
    with pytest.raises(AttemptFailed, match="executable bit"):
        command_of(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/no/such/shell\n", "does not exist"),
        ("#!\n", "does not exist"),
        ("#!/bin/bash\r\necho\r\n", "Windows"),
    ],
)
def test_a_failing_start_is_a_script_error(script: Write, text: str, said: str) -> None:
    with pytest.raises(AttemptFailed, match=said) as caught:
        run_script(script(text))
    assert caught.value.reason is Reason.SCRIPT_ERROR


def test_a_missing_script_is_a_script_error(tmp_path: Path) -> None:
    with pytest.raises(AttemptFailed, match="cannot be read"):
        command_of(tmp_path / "absent")


def test_too_large_an_environment_is_a_script_error(script: Write) -> None:
    run_script(script("true"))  # starts the guard
    before = open_files()
    with pytest.raises(AttemptFailed, match="cannot be started"):
        run_script(script("true"), variables={"BIG": "x" * 2**20})
    assert open_files() <= before


def test_sigterm_is_sent_first(script: Write) -> None:
    text = "trap 'echo saved; exit 0' TERM; echo on; while :; do sleep 30 & wait; done"
    outcome = run_script(script(text), within_s=0.2, grace_s=10.0)
    assert outcome.ending is Ending.DEADLINE
    assert outcome.log_tail == "on\nsaved\n"
    assert outcome.ended_s - outcome.started_s < 5


def test_a_script_that_ignores_sigterm_is_killed(script: Write) -> None:
    text = "trap '' TERM; while :; do sleep 30; done"
    outcome = run_script(script(text), within_s=0.2, grace_s=0.1)
    assert (outcome.ending, outcome.status) == (Ending.DEADLINE, -signal.SIGKILL)


def test_a_stopped_script_is_ended_too(script: Write) -> None:
    outcome = run_script(script("kill -STOP $$"), within_s=0.2)
    assert (outcome.ending, outcome.status) == (Ending.DEADLINE, -signal.SIGKILL)


def test_no_time_left_is_a_timeout_at_once(script: Write) -> None:
    assert run_script(script("sleep 60"), within_s=-1.0).ending is Ending.DEADLINE


@contextlib.contextmanager
def signals_of(*, lost: int = 0, preempt_ms: int = 0) -> Iterator[Signals]:
    signals = Signals(lost_fd=os.eventfd(lost), preempt_fd=os.eventfd(preempt_ms))
    try:
        yield signals
    finally:
        os.close(signals.lost_fd)
        os.close(signals.preempt_fd)


def test_a_lost_session_kills_the_group_at_once(script: Write) -> None:
    with signals_of(lost=1) as signals:
        outcome = run_script(script("trap '' TERM; sleep 60"), signals=signals)
    assert (outcome.ending, outcome.status) == (Ending.LOST, -signal.SIGKILL)


def run_preempted(path: Path, ready: Path, grace_ms: int) -> Outcome:
    """Run a script that gets the notice once it has written `ready`."""
    with signals_of() as signals, ThreadPoolExecutor(1) as pool:

        def notify() -> None:
            pid_in(ready)
            os.eventfd_write(signals.preempt_fd, grace_ms)

        notified = pool.submit(notify)
        outcome = run_script(path, signals=signals)
        notified.result()
    return outcome


def test_a_preempted_script_has_its_grace_time(script: Write, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    saves = f"trap 'echo saved; exit 0' TERM; echo $$ > {ready}; while :; do sleep 0.02; done"
    outcome = run_preempted(script(saves), ready, grace_ms=60_000)
    assert (outcome.ending, outcome.status) == (Ending.PREEMPTED, 0)
    assert outcome.log_tail.endswith("saved\n"), "the shell may report the end of its sleep first"
    assert not outcome.good, "an exit status of 0 after SIGTERM is no result"


def test_a_preempted_script_that_ignores_sigterm_is_killed(script: Write, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    ignores = f"trap '' TERM; echo $$ > {ready}; while :; do sleep 30; done"
    outcome = run_preempted(script(ignores), ready, grace_ms=100)
    assert (outcome.ending, outcome.status) == (Ending.PREEMPTED, -signal.SIGKILL)


def test_the_grace_time_of_a_preemption_ends_with_that_of_the_function(script: Write) -> None:
    with signals_of(preempt_ms=3_600_000) as signals:
        text = "trap '' TERM; while :; do sleep 30; done"
        outcome = run_script(script(text), within_s=0.2, signals=signals)
    assert outcome.ending is Ending.PREEMPTED


def test_a_session_that_is_lost_in_the_grace_time_kills_at_once(script: Write) -> None:
    with signals_of(lost=1, preempt_ms=60_000) as signals:
        outcome = run_script(script("trap '' TERM; sleep 60"), signals=signals)
    assert outcome.status == -signal.SIGKILL


def test_children_of_a_timed_out_script_are_killed(script: Write, tmp_path: Path) -> None:
    child = tmp_path / "child"
    run_script(script(f"sleep 300 & echo $! > {child}; wait"), within_s=0.3)
    assert not alive(pid_in(child))


def test_children_that_outlive_a_script_are_killed(script: Write, tmp_path: Path) -> None:
    child = tmp_path / "child"
    outcome = run_script(script(f"sleep 300 & echo $! > {child}; echo done"))
    assert (outcome.status, outcome.log_tail) == (0, "done\n")
    assert not alive(pid_in(child))


def test_a_daemon_outside_of_the_group_is_killed(script: Write, tmp_path: Path) -> None:
    child = tmp_path / "child"
    text = f"""\
        #!/usr/bin/env python3
        import os, pathlib, signal
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                pathlib.Path({str(child)!r}).write_text(f"{{os.getpid()}}\\n")
                signal.pause()
            os._exit(0)
        while not (p := pathlib.Path({str(child)!r})).exists() or not p.read_text().endswith("\\n"):
            pass
        """
    assert run_script(script(textwrap.dedent(text))).status == 0
    assert not alive(pid_in(child))


def test_runs_side_by_side_spare_each_other_and_leave_nothing(
    script: Write, tmp_path: Path
) -> None:
    """Orphans of a run's session end with it, those of sessions of their own with the last run."""
    began, go, own, apart = (tmp_path / name for name in ("began", "go", "own", "apart"))
    waits = script(f"echo $$ > {began}; until [ -e {go} ]; do sleep 0.01; done")
    waits = waits.rename(tmp_path / "waits")
    leaves = f"(sleep 300 & echo $! > {own}); setsid sh -c 'echo $$ > {apart}; exec sleep 300' &"
    leaving = script(f"{leaves} until [ -s {apart} ]; do :; done")
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(run_script, waits)
        waiting = pid_in(began)
        try:
            assert run_script(leaving).good
            assert [alive(pid) for pid in (waiting, pid_in(own), pid_in(apart))] == [
                True,
                False,
                True,
            ]
        finally:
            go.touch()
        assert first.result().good
    assert not alive(pid_in(apart))


def test_the_sweep_spares_earlier_children(script: Write) -> None:
    other = subprocess.Popen(["/bin/sleep", "300"])
    try:
        assert other.pid in reaper.children()
        run_script(script("true"))
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("frozen", [False, True])
def test_a_killed_runner_ends_the_script(tmp_path: Path, frozen: bool) -> None:
    """Frozen: as a sandbox between two runs, whose server dies."""
    code = textwrap.dedent(f"""\
        import time, pathlib
        from lambda_functions.gpu_runner.script.process import run
        run(["/bin/sh", "-c", "echo on; exec sleep 300"], variables={{}},
            folder=pathlib.Path({str(tmp_path)!r}), deadline_s=time.monotonic() + 60, grace_s=1)
        """)
    runner = subprocess.Popen(
        [sys.executable, "-u", "-c", code], cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True
    )
    assert runner.stdout is not None
    assert runner.stdout.readline() == b"on\n"
    runner.stdout.close()
    children = Path(f"/proc/{runner.pid}/task/{runner.pid}/children").read_text().split()
    assert len(children) == 2, "the script and the guard"
    ends = [os.pidfd_open(int(child)) for child in children]
    if frozen:
        for pid in (runner.pid, *map(int, children)):
            os.kill(pid, signal.SIGSTOP)
            while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "T":
                os.sched_yield()  # the signal is delivered when the process is scheduled
    runner.kill()
    runner.wait()
    for end in ends:  # not our children: their pidfds become readable
        assert readable((end,), 60), "a process outlived its runner"
        os.close(end)


def test_only_the_end_of_a_long_log_is_kept(script: Write) -> None:
    text = "#!/usr/bin/env python3\nimport sys\nsys.stdout.write('a' * 300_000 + 'é' * 5000)\n"
    outcome = run_script(script(text))
    assert len(outcome.log_tail.encode()) <= LOG_TAIL_BYTES_MAX
    assert set(outcome.log_tail) == {"é"}


def test_the_echo_stops_at_its_limit(capsys: pytest.CaptureFixture[str]) -> None:
    tail = LogTail(echo_bytes_max=10)
    tail.feed(b"1234567890\nmore\n")
    assert capsys.readouterr().out.startswith("1234567890\n[log: over 10 bytes")
    assert tail.text() == "1234567890\nmore\n"


def test_a_line_that_does_not_end_is_echoed_in_pieces(capsys: pytest.CaptureFixture[str]) -> None:
    tail, piece = LogTail(by_lines=True), "\r50 %" + 59 * " "
    for _ in range(255):
        tail.feed(piece.encode())
    assert capsys.readouterr().out == 128 * piece + "\n"
    tail.feed(b"\nnext\nopen")
    tail.finish()
    assert capsys.readouterr().out == 127 * piece + "\nnext\nopen\n"
    assert tail.text().endswith(f"{piece}\nnext\nopen")


def test_logs_side_by_side_share_the_echo_by_lines(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = LogTail(by_lines=True), LogTail(by_lines=True)
    for tail, chunk in ((one, b"a"), (two, b"b\nb"), (one, b"a\nl"), (two, b"b\n")):
        tail.feed(chunk)
    for tail in (one, two):
        tail.finish()
    assert capsys.readouterr().out == "b\naa\nbb\nl\n"
    assert (one.text(), two.text()) == ("aa\nl", "b\nbb\n")


def test_malformed_utf8_is_replaced(script: Write) -> None:
    assert "ok" in run_script(script(r"printf '\377\376\000ok'")).log_tail


def test_a_script_that_closes_its_output_continues(script: Write) -> None:
    outcome = run_script(script("exec >&- 2>&-; sleep 0.05; exit 7"))
    assert outcome.status == 7


def test_a_script_has_empty_input_and_only_its_own_environment(script: Write) -> None:
    text = "cat; env | sed 's/=.*//' | sort; ls /proc/self/fd | wc -l"
    outcome = run_script(script(text), variables={"GIVEN": "1"})
    names = outcome.log_tail.split()
    assert set(names[:-1]) <= {"GIVEN", "PATH", "PWD", "OLDPWD", "SHLVL", "_"}
    assert int(names[-1]) <= 4


def test_no_descriptor_and_no_process_is_leaked(script: Write) -> None:
    path = script("echo hi")
    run_script(path)  # starts the guard
    before, children = open_files(), reaper.children()
    for _ in range(20):
        run_script(path)
    assert open_files() <= before
    assert reaper.children() == children
