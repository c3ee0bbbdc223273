"""The surroundings of a function's code: an interpreter, the runtime client, boto3, variables.

As on Lambda: the standard library, boto3 and the runtime client with their dependencies, and no
other package of this machine. The same holds for every Python that a function starts: `python3` is
the one of a virtual environment with these packages alone. A function brings all other packages in
its own zip.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from corekit.errors import AppError, ErrorCode
from corekit.values import Value, field

#: Distributions a function may import, with all they depend on.
_PROVIDED = ("awslambdaric", "boto3")
_REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")
_BOOTSTRAP = Path(__file__).with_name("bootstrap.py")
#: Address space a process reserves without using it (thread stacks), on top of its memory.
_RESERVED_MIB = 64


class RunSpec(Value):
    """The specification of a run."""

    name: str
    arn: str
    revision: str  #: an environment started with another one is not reused
    handler: str
    code: Path  #: folder of the unpacked zip
    timeout_s: float
    memory_mib: int
    variables: Mapping[str, str] = field(default_factory=dict)
    named_group: str = ""  #: log group; "" = Lambda's own

    @property
    def log_group(self) -> str:
        """The log group that the run writes to."""
        return self.named_group or log_group(self.name)


class Runtime:
    """The shared, read-only part of every environment, in a folder of links."""

    def __init__(
        self, folder: Path, *, endpoint: str, region: str, keys: tuple[str, str] | None = None
    ) -> None:
        """`keys` are the access key and secret of functions; None = signatures are not verified."""
        self._access_key, self._secret_key = keys or ("test", "test")
        self._endpoint = endpoint
        self._region = region
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        folder = folder.resolve()
        self._packages = folder / "lib" / version / "site-packages"
        self._programs = folder / "bin"
        shutil.rmtree(folder, ignore_errors=True)
        self._packages.mkdir(parents=True)
        self._programs.mkdir()
        for path in _top_level(_PROVIDED):
            (self._packages / path.name).symlink_to(path)
        self._interpreter = self._programs / "python3"
        self._make_interpreter(version)

    def _make_interpreter(self, version: str) -> None:
        """Make the folder a virtual environment, without activation scripts and pip."""
        base = Path(sys.executable).resolve()
        for name in ("python3", "python", version):
            (self._programs / name).symlink_to(base)
        settings = {"home": str(base.parent), "include-system-site-packages": "false"}
        text = "".join(f"{key} = {value}\n" for key, value in settings.items())
        (self._programs.parent / "pyvenv.cfg").write_text(text)

    def command(self, spec: RunSpec) -> list[str]:
        """The command that starts an environment's process."""
        memory_bytes = (spec.memory_mib + _RESERVED_MIB) * 2**20
        started = [str(self._interpreter), str(_BOOTSTRAP), str(os.getpid()), str(memory_bytes)]
        return [*started, spec.handler]

    def variables(
        self, spec: RunSpec, *, runtime_api: str, stream: str, scratch: Path
    ) -> dict[str, str]:
        """All variables of the process; a function's own never replace Lambda's."""
        return {
            **spec.variables,
            "_HANDLER": spec.handler,
            "AWS_ACCESS_KEY_ID": self._access_key,
            "AWS_SECRET_ACCESS_KEY": self._secret_key,
            "AWS_SESSION_TOKEN": "test",
            "AWS_DEFAULT_REGION": self._region,
            "AWS_REGION": self._region,
            "AWS_ENDPOINT_URL": self._endpoint,
            "AWS_EXECUTION_ENV": f"AWS_Lambda_python3.{sys.version_info.minor}",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(spec.memory_mib),
            "AWS_LAMBDA_FUNCTION_NAME": spec.name,
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
            "AWS_LAMBDA_LOG_GROUP_NAME": spec.log_group,
            "AWS_LAMBDA_LOG_STREAM_NAME": stream,
            "AWS_LAMBDA_RUNTIME_API": runtime_api,
            "LAMBDA_RUNTIME_DIR": str(self._packages),
            "LAMBDA_TASK_ROOT": str(spec.code),
            "LANG": "C.UTF-8",
            "PATH": f"{self._programs}:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": str(self._packages),
            "TMPDIR": str(scratch),
            "TZ": ":UTC",
        }


def log_group(function: str) -> str:
    """The log group of a function."""
    return f"/aws/lambda/{function}"


def _top_level(names: tuple[str, ...]) -> list[Path]:
    found: dict[str, Path] = {}
    for name in _with_dependencies(names):
        distribution = metadata.distribution(name)
        for file in distribution.files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not top.endswith((".pth", ".egg-info")):
                found[top] = Path(str(distribution.locate_file(top)))
    return [found[name] for name in sorted(found)]


def _with_dependencies(names: tuple[str, ...]) -> list[str]:
    todo, names_seen = list(names), dict.fromkeys(names)
    while todo:
        name = todo.pop()
        try:
            requires = metadata.distribution(name).requires or []
        except metadata.PackageNotFoundError:
            raise AppError(
                ErrorCode.UNAVAILABLE, f"{name} is not installed; functions cannot run without it"
            ) from None
        for text in requires:
            match = _REQUIREMENT.match(text)
            if match is not None and "extra ==" not in text and match[0] not in names_seen:
                names_seen[match[0]] = None
                todo.append(match[0])
    return list(names_seen)
