"""Progress and checkpoints of an attempt, under a real script and the embedded S3."""

from __future__ import annotations

import io
import math
import os
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from contract.keys import checkpoint_key, progress_key
from contract.progress import Progress
from lambda_functions.gpu_runner import keeping
from lambda_functions.gpu_runner.secrets.stores import Stores
from lambda_functions.gpu_runner.secrets.values import SecretValues, parsed
from lambda_functions.gpu_runner.storage.checkpoint import Checkpoint
from tests.integration.gpu_runner.conftest import Bench


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "LOOK_S", 0.02)


def saved(bench: Bench) -> dict[str, bytes]:
    body = bench._read(checkpoint_key(bench.job.job_id))
    if body is None:
        return {}
    with tarfile.open(fileobj=io.BytesIO(body)) as tar:
        files = [one for one in tar.getmembers() if one.isfile()]
        return {one.name.removeprefix("./"): _content(tar, one) for one in files}


def _content(tar: tarfile.TarFile, one: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(one)
    assert file is not None
    return file.read()


def progress(bench: Bench) -> Progress | None:
    body = bench._read(progress_key(bench.job.job_id, bench.job.attempt))
    return None if body is None else Progress.from_json(body)


def _go_on(bench: Bench, when: Callable[[], bool]) -> None:
    """Let the script end once it is so."""
    while not when():
        pass
    home = next(Path(bench.folder, "tmp").glob("orchgpu-run-*"))
    (home / "go").touch()


def test_what_the_code_reports_is_stored_while_it_runs(bench: Bench) -> None:
    bench.write(
        '#!/bin/sh\necho "0.4 epoch 3" > "$PROGRESS_FILE"\n'
        'until [ -e "$HOME/go" ]; do sleep 0.02; done\n'
    )
    found: list[Progress] = []

    def look() -> None:
        while not found:
            if (now := progress(bench)) is not None:
                found.append(now)
        home = next(Path(bench.folder, "tmp").glob("orchgpu-run-*"))
        (home / "go").touch()

    thread = threading.Thread(target=look)
    thread.start()
    answer = bench.run()
    thread.join()
    assert answer["status"] == "succeeded"
    assert (found[0].part, found[0].text, found[0].saved_at_s) == (0.4, "epoch 3", None)


def test_an_attempt_that_is_cut_short_leaves_its_folder_to_the_next(bench: Bench) -> None:
    bench.checkpoint_s, bench.timeout_s = 60.0, 4.0
    bench.write(
        "#!/bin/sh\nset -e\n"
        'n=$(cat "$CHECKPOINT_DIR/n" 2>/dev/null || echo 0)\n'
        'echo $((n + 1)) > "$CHECKPOINT_DIR/n"\n'
        'if [ "$n" -ge 1 ]; then cp "$CHECKPOINT_DIR/n" "$TMP_OUTPUT_DIR/n"; exit 0; fi\n'
        "sleep 60\n"
    )
    assert bench.run()["reason"] == "TIMEOUT"
    assert saved(bench) == {"n": b"1\n"}
    bench.gateway.holder = ""
    bench.timeout_s = 30.0
    bench.change(attempt=2)
    assert bench.run()["status"] == "succeeded"
    assert bench.outputs == {"res/n": b"2\n"}
    assert saved(bench) == {}  # the job is over


def test_it_is_saved_at_intervals_and_a_crash_costs_one_at_most(bench: Bench) -> None:
    bench.checkpoint_s = 0.05
    bench.write(
        '#!/bin/sh\necho 7 > "$CHECKPOINT_DIR/epoch"\n'
        'until [ -e "$HOME/go" ]; do sleep 0.02; done\nkill -9 $$\n'
    )

    def look() -> None:
        while not saved(bench):
            pass
        home = next(Path(bench.folder, "tmp").glob("orchgpu-run-*"))
        (home / "go").touch()

    thread = threading.Thread(target=look)
    thread.start()
    assert bench.run()["reason"] == "KILLED"
    thread.join()
    assert saved(bench) == {"epoch": b"7\n"}
    last = progress(bench)
    assert last is not None
    assert last.saved_at_s is not None


def test_code_that_goes_on_after_the_notice_is_saved_before_its_lease_ends(bench: Bench) -> None:
    """Defect: it had the whole grace time, at whose end a host kills the runner too."""
    bench.checkpoint_s, grace_s = 60.0, 4.0
    bench.write(
        "#!/bin/sh\ntrap 'echo 7 > \"$CHECKPOINT_DIR/epoch\"' TERM\n"
        'touch "$HOME/ready"\nwhile :; do sleep 0.02; done\n'
    )
    found: list[dict[str, bytes]] = []

    def notify() -> None:
        while not list(Path(bench.folder, "tmp").glob("orchgpu-run-*/ready")):
            time.sleep(0.01)
        bench.gateway.preempt(grace_s)
        ends_s = time.monotonic() + grace_s * 0.9
        while not (kept := saved(bench)) and time.monotonic() < ends_s:
            time.sleep(0.01)
        found.append(kept)

    thread = threading.Thread(target=notify)
    thread.start()
    answer = bench.run()
    thread.join()
    assert answer["reason"] == "PREEMPTED"
    assert found == [{"epoch": b"7\n"}]


@pytest.mark.parametrize(
    ("look_s", "due_in_s", "pause_s"),
    [(10.0, 600.0, 10.0), (10.0, 4.0, 4.0), (10.0, -1.0, 0.0), (10.0, math.inf, 10.0)],
)
def test_a_look_comes_no_later_than_a_checkpoint_that_is_due(
    look_s: float, due_in_s: float, pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect: looks every 10 s saved at 20 s what was due after 11 s."""
    monkeypatch.setattr(keeping, "LOOK_S", look_s)
    assert keeping.pause_s(due_in_s) == pause_s


def test_a_late_save_of_an_earlier_attempt_replaces_nothing(bench: Bench, tmp_path: Path) -> None:
    first = Checkpoint(bench.s3, bench.job, tmp_path / "first", tmp_path)
    second = Checkpoint(bench.s3, bench.job, tmp_path / "second", tmp_path)
    (first.folder / "n").write_text("1")
    assert first.save()
    assert second.restore()
    (second.folder / "n").write_text("2 of the second")
    assert second.save()
    (first.folder / "n").write_text("late, of the first")
    assert not first.save()
    assert not first.save()
    first.remove()
    assert saved(bench) == {"n": b"2 of the second"}


def test_it_holds_what_the_next_attempt_can_read_and_nothing_from_outside(
    bench: Bench, tmp_path: Path
) -> None:
    kept = Checkpoint(bench.s3, bench.job, tmp_path / "kept", tmp_path)
    outside = tmp_path / "private"
    outside.mkdir()
    (outside / "credentials").write_text("secret")
    (kept.folder / "epochs").mkdir()
    (kept.folder / "epochs/3").write_text("three")
    (kept.folder / "latest").symlink_to("epochs/3")
    (kept.folder / "absolute").symlink_to(kept.folder / "epochs/3")
    (kept.folder / "away").symlink_to("../private")
    os.mkfifo(kept.folder / "pipe")
    assert kept.save()
    assert saved(bench) == {"epochs/3": b"three"}
    following = Checkpoint(bench.s3, bench.job, tmp_path / "following", tmp_path)
    assert following.restore()
    assert (following.folder / "latest").read_text() == "three"
    assert sorted(one.name for one in following.folder.iterdir()) == ["epochs", "latest"]


def test_a_folder_that_became_a_link_is_not_saved(bench: Bench, tmp_path: Path) -> None:
    kept = Checkpoint(bench.s3, bench.job, tmp_path / "kept", tmp_path)
    (tmp_path / "private").mkdir()
    (tmp_path / "private/credentials").write_text("secret")
    kept.folder.rmdir()
    kept.folder.symlink_to("private")
    with pytest.raises(OSError, match="not a folder any more"):
        kept.save()


def test_an_unchanged_folder_is_not_stored_again(bench: Bench, tmp_path: Path) -> None:
    kept = Checkpoint(bench.s3, bench.job, tmp_path / "kept", tmp_path)
    (kept.folder / "n").write_text("1")
    assert kept.save()
    key = checkpoint_key(bench.job.job_id)
    bench.s3.delete_object(Bucket=bench.job.intermediate_bucket, Key=key)
    assert kept.save()
    assert saved(bench) == {}


def test_a_checkpoint_that_is_no_archive_fails_the_attempt(bench: Bench) -> None:
    bench.checkpoint_s = 60.0
    bench.write("#!/bin/sh\n")
    key = checkpoint_key(bench.job.job_id)
    bench.s3.put_object(Bucket=bench.job.intermediate_bucket, Key=key, Body=b"torn")
    answer = bench.run()
    assert answer["reason"] == "INPUT_ERROR"
    assert "the checkpoint" in str(answer["detail"])


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (b"0.4 epoch 3\n", (0.4, "epoch 3")),
        (b"1", (1.0, "")),
        (b"loading\nmore", (None, "loading")),
        (b"7 of 9", (None, "7 of 9")),
        (b"nan x", (None, "nan x")),
        (b"", (None, "")),
        (b"\xff\xfe", (None, "\ufffd\ufffd")),
    ],
)
def test_forms_of_a_report(
    written: bytes, expected: tuple[float | None, str], tmp_path: Path
) -> None:
    file = tmp_path / "progress"
    assert keeping.read_progress(file) == (None, "")
    file.write_bytes(written)
    assert keeping.read_progress(file) == expected


def test_progress_is_read_from_a_plain_file_alone(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("secret")
    (tmp_path / "link").symlink_to("credentials")
    os.mkfifo(tmp_path / "pipe")
    assert keeping.read_progress(tmp_path / "link") == (None, "")
    assert keeping.read_progress(tmp_path / "pipe") == (None, "")


def test_a_reported_secret_is_masked(bench: Bench) -> None:
    bench.secrets = {"": {"TOKEN": "file:" + str(bench.folder / "token")}}
    (bench.folder / "token").write_text("hunter2-hunter2")
    bench.values = SecretValues(Stores(parsed(bench.secrets)).read)
    bench.write(
        '#!/bin/sh\necho "0.5 $TOKEN" > "$PROGRESS_FILE"\n'
        'until [ -e "$HOME/go" ]; do sleep 0.02; done\n'
    )
    thread = threading.Thread(target=lambda: _go_on(bench, lambda: progress(bench) is not None))
    thread.start()
    assert bench.run()["status"] == "succeeded"
    thread.join()
    last = progress(bench)
    assert last is not None
    assert last.text == "***"
