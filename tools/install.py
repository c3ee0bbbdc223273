"""Makes `.venv` and installs the packages of a lock file in it, with their hashes checked.

    python3 tools/install.py requirements-demo.lock [requirements.lock]

Packages are installed by uv, which is in both lock files; where uv cannot be had or fails, by pip.
Runs under any Python from 3.11 to 3.13, with its standard library alone. May be repeated.

Exit status: 0 done; 1 a package could not be installed; 2 wrong arguments or Python.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON, UV = VENV / "bin" / "python", VENV / "bin" / "uv"
PIP = (str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
#: pip's settings by variable → those of uv, which reads no configuration of pip.
_INDEXES = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_CERT": "SSL_CERT_FILE",
}


def main(arguments: list[str]) -> int:
    """Install the lock files named, in their order, and then the project itself."""
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        print("Python 3.11 to 3.13 is needed; say make PYTHON=python3.12", file=sys.stderr)
        return 2
    locks = [ROOT / name for name in arguments]
    if not locks or not all(lock.is_file() for lock in locks):
        print(__doc__, file=sys.stderr)
        return 2
    started_s = time.monotonic()
    if not _has_pip():
        print(f"installing into .venv: Python {sys.version.split()[0]}", flush=True)
        venv.create(VENV, clear=True, with_pip=True)
    by_uv = _install_uv(locks[0])
    try:
        for lock in locks:
            count = len(re.findall(r"^\S+==", lock.read_text(), re.MULTILINE))
            by = "uv" if by_uv else "pip, which takes minutes"
            print(
                f"installing into .venv: up to {count} packages of {lock.name} by {by}", flush=True
            )
            by_uv = _install(lock, by_uv=by_uv)
        _run(by_uv, "--no-build-isolation", "--editable", str(ROOT))
    except subprocess.CalledProcessError as error:
        print(f"{error.cmd[0]} ended with status {error.returncode}", file=sys.stderr)
        return 1
    print(f"installed in {time.monotonic() - started_s:.0f} s", flush=True)
    return 0


def _has_pip() -> bool:
    """Whether `.venv` is whole: an interrupted creation leaves a Python without pip."""
    command = (str(PYTHON), "-m", "pip", "--version")
    return (
        PYTHON.exists() and not subprocess.run(command, check=False, capture_output=True).returncode
    )


def _install_uv(lock: Path) -> bool:
    """Install uv by its pin in the lock file; False where no wheel of it can be had."""
    pin = re.search(r"^uv==(?:.*\\\n)*.*\n", lock.read_text(), re.MULTILINE)
    if pin is None:
        return False
    with tempfile.NamedTemporaryFile("w", suffix=".lock") as only:
        only.write(pin.group())
        only.flush()
        command = (*PIP, "--only-binary", ":all:", "--require-hashes", "-r", only.name)
        return not subprocess.run(command, check=False, capture_output=True).returncode


def _install(lock: Path, *, by_uv: bool) -> bool:
    """Install one lock file; returns whether uv did."""
    what = ("--require-hashes", "-r", str(lock))
    if by_uv:
        try:
            _run(True, *what)
        except subprocess.CalledProcessError:
            print("uv failed; the same by pip, which takes minutes", flush=True)
        else:
            return True
    _run(False, *what)
    return False


def _run(by_uv: bool, *what: str) -> None:
    """`pip install` or `uv pip install`. Raises CalledProcessError."""
    uv = (str(UV), "pip", "install", "--quiet", "--python", str(PYTHON), "--no-deps")
    indexes = {to: os.environ[name] for name, to in _INDEXES.items() if name in os.environ}
    subprocess.run((*(uv if by_uv else PIP), *what), env={**indexes, **os.environ}, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
