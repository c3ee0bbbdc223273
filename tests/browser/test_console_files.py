"""The files of the page as they are served: small modules, vendored files as they were pinned."""

from __future__ import annotations

import hashlib
import json
import re

import pytest

from tests.browser.fixture_server import ASSETS

VENDOR = ASSETS / "vendor"
MODULES = sorted(path for path in ASSETS.rglob("*.js") if path.parent != VENDOR)
LINES_MAX = 300
IMPORT = re.compile(r"""(?:\bfrom\s*|^import )["']([^"']+)["'];""", re.MULTILINE)


def test_modules_are_small_and_begin_with_what_they_are() -> None:
    assert len(MODULES) > 30
    texts = {path: path.read_text() for path in MODULES}
    assert [path.name for path, text in texts.items() if text.count("\n") > LINES_MAX] == []
    assert [path.name for path, text in texts.items() if not text.startswith("// ")] == []


def test_every_import_is_a_file_of_the_page() -> None:
    """A bare name would need an import map, and with it an exception of the policy."""
    vendored = sorted(VENDOR.glob("*.js"))
    missing = [
        f"{path.name}: {name}"
        for path in (*MODULES, *vendored)
        for name in IMPORT.findall(path.read_text())
        if not name.startswith(".") or not (path.parent / name).resolve().is_file()
    ]
    assert missing == []


def test_no_markup_is_built_from_text() -> None:
    ways = re.compile(r"innerHTML|outerHTML|dangerouslySet|insertAdjacent|document\.write|\beval\(")
    assert [path.name for path in MODULES if ways.search(path.read_text())] == []


def test_the_page_names_its_styles_and_has_no_inline_code() -> None:
    page = (ASSETS / "index.html").read_text()
    linked = re.findall(r'href="assets/(styles/[^"]+)"', page)
    assert sorted(linked) == sorted(f"styles/{one.name}" for one in ASSETS.glob("styles/*.css"))
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page)


@pytest.mark.parametrize("package", ["preact", "htm", "uplot"])
def test_vendored_files_are_those_that_were_pinned(package: str) -> None:
    pin = json.loads((VENDOR / "versions.json").read_text())[package]
    assert f"{package}.LICENSE.txt" in pin["files"]
    for name, digest in pin["files"].items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name
