"""The files of a definition, and their changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fdl.parse import parse
from orchgpu.deploy import watching
from orchgpu.deploy.watching import Changes, Stamps, paths_of, stamps

A, B = Path("a"), Path("b")
ONE, TWO, THREE = (1, 1, 1), (1, 1, 2), (1, 1, 3)


@pytest.mark.parametrize(
    "looks",
    [  # time, the stamp of a, and the files that have changed and settled
        [(0.0, ONE, []), (9.0, ONE, [])],
        [(0.0, TWO, []), (0.3, TWO, []), (0.5, TWO, [A]), (0.8, TWO, [])],
        [(0.0, TWO, []), (0.3, THREE, []), (0.6, THREE, []), (0.8, THREE, [A])],
        [(0.0, None, []), (0.3, TWO, []), (0.8, TWO, [A])],
        [(0.0, TWO, []), (0.3, ONE, []), (0.8, ONE, [])],
    ],
)
def test_a_change_counts_once_it_has_settled(
    looks: list[tuple[float, watching.Stamp, list[Path]]],
) -> None:
    changes = Changes({A: ONE, B: ONE})
    for at_s, stamp, expected in looks:
        assert changes.settled({A: stamp, B: ONE}, at_s) == expected


def test_files_that_appear_and_vanish_have_changed() -> None:
    changes, now = Changes({A: ONE}), {B: ONE}
    assert changes.settled(now, 0.0) == []
    assert changes.settled(now, 1.0) == [A, B]


def test_the_files_of_a_definition_are_watched(tmp_path: Path) -> None:
    (tmp_path / "files" / "deep").mkdir(parents=True)
    for name in ("s.sh", "files/one", "files/deep/two"):
        (tmp_path / name).write_text(name)
    document = parse(
        "functions: {aws: [{lambda: {name: one, init_script: s.sh, extra_payload: files}},"
        " {lambda: {name: two, handler: m.run}}]}"
    )
    definition = tmp_path / "fdl.yaml"
    found = stamps(paths_of(definition, document))
    names = sorted(path.relative_to(tmp_path).as_posix() for path in found)
    expected = ["fdl.yaml", "files", "files/deep", "files/deep/two", "files/one", "m.py", "s.sh"]
    assert names == expected
    assert found[tmp_path / "m.py"] is None
    before: Stamps = dict(found)
    os.utime(tmp_path / "files/deep/two", (1, 1))
    after = stamps(paths_of(definition, document))
    assert [path.name for path in found if before[path] != after[path]] == ["two"]


def test_a_large_folder_is_watched_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "FILES_MAX", 3)
    for number in range(5):
        (tmp_path / f"f{number}").write_text("")
    assert len(stamps([tmp_path])) == 3
