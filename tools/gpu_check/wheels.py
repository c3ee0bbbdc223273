"""Collects the wheels that a machine with a GPU lacks, by the pins of requirements.lock.

    python -m tools.gpu_check.wheels FOLDER [--python 3.12] [--have FILE] [--limit-mib 60]

FILE names the packages that the machine has, one a line (the output of `pip freeze` or `pip list`);
without it they are those of `image.txt`. Wheels are for Linux on x86-64, their hashes are checked.
CUDA's own libraries are left to the machine: they are larger than all others together.

Exit status: 0 done; 1 the wheels are larger than the limit, or pip failed; 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from benchmarks.report import ROOT

LOCK = ROOT / "requirements.lock"
IMAGE = Path(__file__).with_name("image.txt")
#: Packages that the parts import, directly or through others.
NEEDED = (
    *("aiohappyeyeballs", "aiohttp", "aiosignal", "anyio", "archspec", "attrs", "boto3"),
    *("botocore", "certifi", "cffi", "click", "cryptography", "execnet", "frozenlist"),
    *("hypothesis", "idna", "iniconfig", "jmespath", "markdown-it-py", "mdurl", "msgspec"),
    *("multidict", "numpy", "nvidia-ml-py", "onnxruntime", "packaging", "parasail", "pillow"),
    *("platformdirs", "pluggy", "propcache", "pycparser", "pygments", "pyopal", "pytest"),
    *("pytest-asyncio", "pytest-timeout", "pytest-xdist", "python-dateutil", "pyyaml", "rich"),
    *("s3transfer", "scoring-matrices", "six", "sortedcontainers", "typing-extensions"),
    *("urllib3", "uvloop", "yarl"),
)
#: Of pip: it takes wheels of exactly these.
_PLATFORMS = [
    f"{name}_x86_64"
    for name in (
        *("manylinux_2_28", "manylinux_2_27", "manylinux_2_17"),
        *("manylinux2014", "manylinux1"),
    )
]


def normal(name: str) -> str:
    """A package's name by PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def names_in(text: str) -> set[str]:
    """The packages that a list names: `pip freeze`, `pip list`, or one name a line."""
    found = (re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line) for line in text.splitlines())
    return {normal(one.group()) for one in found if one}


def locked(text: str, python: str) -> Iterator[tuple[str, str]]:
    """Names, and pins with hashes for pip, of the packages for a Python on Linux."""
    # here: only this command needs it, and the check itself needs no package
    from packaging.markers import Marker

    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_machine": "x86_64",
        "platform_system": "Linux",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    for entry in re.split(r"\n(?=\S)", text):
        first, *rest = entry.replace("\\\n", "\n").splitlines() or [""]
        pin, _, marker = (part.strip() for part in first.partition(";"))
        if "==" in pin and (not marker or Marker(marker).evaluate(environment)):
            yield (
                normal(pin.partition("==")[0].partition("[")[0]),
                " ".join([pin, *(line.strip() for line in rest if line.strip())]),
            )


def chosen(lock: str, python: str, have: Collection[str]) -> list[str]:
    """The pins of the needed packages that the machine lacks."""
    return [pin for name, pin in locked(lock, python) if name in NEEDED and name not in have]


def main(arguments: Sequence[str] | None = None) -> int:
    """Collect them; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="of that machine [3.12]")
    parser.add_argument("--have", type=Path, default=IMAGE, help="list of its packages")
    parser.add_argument("--limit-mib", type=float, default=60.0, help="of all wheels [60]")
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"3\.\d+", options.python):
        parser.error(f"--python {options.python}: a version such as 3.12")
    try:
        have = names_in(options.have.read_text(encoding="utf-8"))
        options.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(str(error))
    pins = chosen(LOCK.read_text(encoding="utf-8"), options.python, have)
    if status := _download(pins, options.python, options.folder):
        return status
    sizes = {path.name: path.stat().st_size / 2**20 for path in options.folder.glob("*.whl")}
    for name, size in sorted(sizes.items()):
        print(f"{size:8.2f} MiB  {name}")
    total = sum(sizes.values())
    print(f"{total:8.2f} MiB in {len(sizes)} wheels: --wheels {options.folder}")
    if total > options.limit_mib:
        print(f"wheels: more than the limit of {options.limit_mib:g} MiB", file=sys.stderr)
        return 1
    return 0


def _download(pins: Sequence[str], python: str, folder: Path) -> int:
    """Download into the folder; returns pip's exit status, 0 or 1."""
    if not pins:
        return 0
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as listed:
        listed.write("\n".join(pins) + "\n")
        listed.flush()
        command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
        command += ["--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"]
        command += ["--implementation", "cp", "--python-version", python]
        command += [word for name in _PLATFORMS for word in ("--platform", name)]
        done = subprocess.run([*command, "-d", str(folder), "-r", listed.name], check=False)
    return min(done.returncode, 1)


if __name__ == "__main__":
    sys.exit(main())
