"""The examples' scripts, as the function starts them, on a real gpud."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from corekit.conditions import holds
from fdl.parse import parse
from tests.integration.gpud.conftest import Gpud, running_gpud

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "fdl/examples"
GOLDEN = ROOT / "tests/unit/operations/golden"
PROTEINS = EXAMPLES / "sequence-search/database/proteins.fasta"


@pytest.fixture(scope="module")
def _gpud_of_this_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpud]:
    """In place of the folder's own: a host that has the proteins."""
    data = {"proteins": PROTEINS}
    with running_gpud(tmp_path_factory.mktemp("gpud"), operations=(), data=data) as gpud:
        yield gpud


def run(
    gpud: Gpud, script: Path, source: Path, out: Path, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The script in a process of its own, with a lease and SCAR's variables."""
    out.mkdir(exist_ok=True)
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with gpud.open(gpud.install(memory_mib=512)) as session:
        environment = {
            "PATH": search,
            "PYTHONPATH": str(ROOT),
            "INPUT_FILE_PATH": str(source),
            "TMP_OUTPUT_DIR": str(out),
            **(variables or {}),
            **session.environment(),
        }
        return subprocess.run(
            [script], env=environment, capture_output=True, text=True, timeout=60, check=False
        )


def test_hello_device(shared_gpud: Gpud, tmp_path: Path) -> None:
    folder = EXAMPLES / "hello-device"
    done = run(shared_gpud, folder / "hello.py", folder / "input/hello.txt", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    (answer,) = (tmp_path / "out").iterdir()
    assert answer.name == "hello.txt.hello.txt"
    assert answer.read_text().startswith("cpu device ")
    assert answer.read_text().endswith(" says: hello, device\n")


def test_signed_answer(shared_gpud: Gpud, tmp_path: Path) -> None:
    folder, key = EXAMPLES / "signed-answer", "a-secret-key"
    given, out = folder / "input/order.txt", tmp_path / "out"
    done = run(shared_gpud, folder / "sign.py", given, out, {"SIGNING_KEY": key})
    assert (done.returncode, done.stderr) == (0, "")
    signature = hmac.new(key.encode(), given.read_bytes(), hashlib.sha256).hexdigest()
    assert (out / "order.txt").read_bytes() == given.read_bytes()
    assert (out / "order.txt.sig").read_text() == f"{signature}\n"


def test_sequence_search(shared_gpud: Gpud, tmp_path: Path) -> None:
    folder = EXAMPLES / "sequence-search"
    source = folder / "input/altered.fasta"
    done = run(shared_gpud, folder / "search.py", source, tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("2 queries, 20 hits in 150 proteins, by pyopal ")
    (table,) = (tmp_path / "out").iterdir()
    assert table.read_text() == (GOLDEN / "altered.tsv").read_text()


def test_text_recognition(shared_gpud: Gpud, tmp_path: Path) -> None:
    folder = EXAMPLES / "text-recognition"
    source = folder / "input/sign.png"
    done = run(shared_gpud, folder / "recognize.py", source, tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out/sign.txt").read_text() == "PLATFORM 7\nTrains to Valencia\n"
    assert '"box"' in (tmp_path / "out/sign.json").read_text()


@pytest.mark.parametrize(("image", "needs_device"), [("blank", False), ("sign", True)])
def test_a_cascade_states_whether_its_answer_suffices(
    tmp_path: Path, image: str, needs_device: bool
) -> None:
    blank = EXAMPLES / "reading-cascade/input/blank.png"
    source = {"blank": blank, "sign": EXAMPLES / "text-recognition/input/sign.png"}[image]
    written, document = tmp_path / "out", tmp_path / "document.json"
    written.mkdir()
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "INPUT_FILE_PATH": str(source),
        "TMP_OUTPUT_DIR": str(written),
        "RESULT_FILE": str(document),
    }
    script = EXAMPLES / "reading-cascade/look.py"
    subprocess.run([script], env=environment, check=True, capture_output=True, timeout=60)
    assert {file.name for file in written.iterdir()} == {source.name, f"{image}.txt"}
    assert (written / source.name).read_bytes() == source.read_bytes()
    text = (EXAMPLES / "reading-cascade/fdl.yaml").read_text()
    (condition,) = [
        source.when
        for function in parse(text).functions.aws
        for source in function.user_input
        if source.when
    ]
    assert holds(condition, {"document": json.loads(document.read_text())}) is needs_device


def test_an_ensemble_reads_an_image_twice_and_combines_the_texts(
    shared_gpud: Gpud, tmp_path: Path
) -> None:
    folder = EXAMPLES / "reading-ensemble"
    source = EXAMPLES / "text-recognition/input/sign.png"
    done = run(shared_gpud, folder / "check.py", source, tmp_path / "mid")
    assert done.returncode == 0, done.stderr
    copy = tmp_path / "mid/sign.png"
    assert copy.read_bytes() == source.read_bytes()
    for reader, confidence in (("strict", "0.9"), ("lenient", "0.3")):
        variables = {"READER": reader, "MIN_CONFIDENCE": confidence}
        texts = tmp_path / "texts" / f"reading-ensemble-{reader}"
        texts.mkdir(parents=True)
        done = run(shared_gpud, folder / "read.py", copy, texts, variables)
        assert (done.returncode, done.stderr) == (0, "")
    done = run(shared_gpud, folder / "combine.py", tmp_path / "texts", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    lines = (tmp_path / "out/sign.txt").read_text().splitlines()
    assert lines[0] == "PLATFORM 7"
    assert len(set(lines)) == len(lines)


@pytest.mark.parametrize(
    ("script", "content", "message"),
    [
        ("sequence-search/search.py", b">q\nMK1\n", "sequence search: EINVAL: bad:2: '1'"),
        ("text-recognition/recognize.py", b"no image", "bad: EINVAL: not an image"),
    ],
)
def test_bad_input_fails_with_what_to_mend_and_no_output(
    shared_gpud: Gpud, tmp_path: Path, script: str, content: bytes, message: str
) -> None:
    source = tmp_path / "bad"
    source.write_bytes(content)
    done = run(shared_gpud, EXAMPLES / script, source, tmp_path / "out")
    assert done.returncode == 1
    assert message in done.stderr
    assert list((tmp_path / "out").iterdir()) == []
