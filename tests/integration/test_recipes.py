"""The recipes of CONTRIBUTING.md, each performed in a copy of the tree."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: A file of a recipe names its path in the block's info string: ```python file=a/b.py
_FILE = re.compile(r"^```\w+ file=(\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMANDS = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Recipe:
    """One `### Add …` section."""

    title: str
    files: tuple[tuple[str, str], ...]
    commands: tuple[str, ...]


def recipes() -> list[Recipe]:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    sections = re.split(r"^### ", page, flags=re.MULTILINE)[1:]
    return [_recipe(section) for section in sections if section.startswith("Add ")]


def _recipe(section: str) -> Recipe:
    lines = "".join(_COMMANDS.findall(section)).splitlines()
    return Recipe(
        title=section.splitlines()[0],
        files=tuple(_FILE.findall(section)),
        commands=tuple(line.removeprefix("$ ") for line in lines if line.startswith("$ ")),
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The tracked tree in a folder of its own, with the modules that are compiled already."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.splitlines():
        for file in (name, importlib.util.cache_from_source(name)):
            if (ROOT / file).is_file():
                (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / file, tmp_path / file)
    return tmp_path


@pytest.mark.parametrize("recipe", recipes(), ids=lambda recipe: recipe.title)
def test_a_recipe_does_what_it_says(recipe: Recipe, copy: Path) -> None:
    assert recipe.files
    assert recipe.commands
    temporary = copy / ".tmp"
    temporary.mkdir()
    for name, text in recipe.files:
        assert not (copy / name).exists(), f"{name} exists: a recipe only adds files"
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text(text)
    for command in recipe.commands:
        program, *arguments = shlex.split(command)
        assert program == "python"
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=copy,
            env={**os.environ, "TMPDIR": str(temporary)},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
