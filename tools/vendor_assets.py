"""Update of the web console's vendored libraries from the npm registry.

    python -m tools.vendor_assets            # the pinned versions again, checked by their hashes
    python -m tools.vendor_assets --latest   # the newest versions, which become the pinned ones

The page has no build step, so each library is one ES file. Bare imports (`from "preact"`) become
relative ones, because an import map would need an exception in the Content-Security-Policy.
npm is needed only for this command; the files are committed.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

FOLDER = Path(__file__).resolve().parents[1] / "orchgpu" / "web" / "assets" / "vendor"
PINS = FOLDER / "versions.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendored:
    """One file of a package, under its name in the page."""

    package: str
    member: str  #: path inside the package
    name: str  #: file name in the vendor folder
    replaced: tuple[tuple[str, str], ...] = ()  #: text → text, in order
    appended: str = ""  #: makes a script that defines one global an ES module


class Pin(TypedDict):
    """One package in `versions.json`."""

    version: str
    license: str
    integrity: str  #: of its archive in the registry
    files: dict[str, str]  #: name → SHA-256 of the vendored file


FILES = (
    Vendored(package="preact", member="dist/preact.mjs", name="preact.js"),
    Vendored(
        package="preact",
        member="hooks/dist/hooks.mjs",
        name="hooks.js",
        replaced=(('from"preact"', 'from"./preact.js"'),),
    ),
    Vendored(package="htm", member="dist/htm.module.js", name="htm.js"),
    Vendored(
        package="uplot",
        member="dist/uPlot.iife.min.js",
        name="uplot.js",
        appended="export default uPlot;\n",
    ),
    Vendored(package="uplot", member="dist/uPlot.min.css", name="uplot.css"),
)
PACKAGES = tuple(dict.fromkeys(file.package for file in FILES))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the vendored files; the exit status is 1 if a package differs from its pin."""
    parser = argparse.ArgumentParser(prog="python -m tools.vendor_assets", description=__doc__)
    parser.add_argument("--latest", action="store_true", help="pin the newest versions first")
    latest: bool = parser.parse_args(arguments).latest
    pins: dict[str, Pin] = json.loads(PINS.read_text()) if PINS.exists() else {}
    new: dict[str, Pin] = {}
    for package in PACKAGES:
        pin = None if latest else pins.get(package)
        with tempfile.TemporaryDirectory() as folder:
            archive = _packed(package, pin["version"] if pin else "latest", Path(folder))
            found = _pin_of(archive)
            if pin and found["integrity"] != pin["integrity"]:
                sys.stderr.write(
                    f"{package} {pin['version']} has another hash than {PINS.name}: "
                    f"{found['integrity']}; nothing of it was written\n"
                )
                return 1
            found["files"] = _written(package, archive)
        new[package] = found
        sys.stdout.write(f"{package} {found['version']} ({found['license']})\n")
    PINS.write_text(json.dumps(new, indent=2) + "\n")
    return 0


def _packed(package: str, version: str, folder: Path) -> Path:
    """Archive of a package, as the registry has it."""
    subprocess.run(
        ["npm", "pack", f"{package}@{version}", "--silent"],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return next(folder.glob("*.tgz"))


def _pin_of(archive: Path) -> Pin:
    manifest = json.loads(_member(archive, "package.json"))
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    return {
        "version": manifest["version"],
        "license": manifest["license"],
        "integrity": f"sha512-{digest}",
        "files": {},
    }


def _member(archive: Path, name: str) -> str:
    with tarfile.open(archive) as opened:
        member = opened.extractfile(f"package/{name}")
        if member is None:
            raise FileNotFoundError(f"{archive.name} has no file {name}")
        return member.read().decode()


def _written(package: str, archive: Path) -> dict[str, str]:
    """Write the files of a package; returns the SHA-256 of each."""
    texts = {f"{package}.LICENSE.txt": _member(archive, "LICENSE")}
    for file in FILES:
        if file.package == package:
            texts[file.name] = _as_module(file, _member(archive, file.member))
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (FOLDER / name).write_text(text)
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def _as_module(file: Vendored, text: str) -> str:
    for old, new in file.replaced:
        if old not in text:
            raise ValueError(f"{file.package}: {file.member} has no {old!r} to replace")
        text = text.replace(old, new)
    # source maps are not vendored, and a browser's tools would ask for them
    kept = [line for line in text.splitlines() if not line.startswith("//# sourceMappingURL=")]
    return "\n".join(kept) + "\n" + file.appended


if __name__ == "__main__":
    sys.exit(main())
