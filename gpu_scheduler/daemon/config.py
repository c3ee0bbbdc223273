"""What ssgmd is told, and by whom: a flag, else a variable, else its file, else the default.

The file is TOML: the names of `SETTINGS` at the top, and in `[parameters]` those of
`gpu_scheduler.parameters.NAMES` (quoted, where they carry a tenant). `ssgm set` overrides a
parameter at run time, and that stays in the journal; here is only what the daemon is started with.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corekit.aio.environment import SCALE_VARIABLE
from corekit.errors import AppError, invalid
from gpu_scheduler.parameters import Parameters, overridden

#: Names the file; a flag goes before it.
FILE_VARIABLE = "SSGMD_CONFIG"
#: A configuration of 1,000 tenants has less than 200 KB.
FILE_BYTES_MAX = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One thing that ssgmd can be told."""

    name: str  #: in the file; the flag is `--name`, with hyphens
    help: str
    default: str | None = None  #: None: none

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return f"SSGMD_{self.name.upper()}"


SETTINGS = (
    Setting(name="state", help="Folder of journal, lock and master key; made when absent."),
    Setting(name="listen", help="Socket door.", default="127.0.0.1:0"),
    Setting(name="http", help="HTTP door.", default="127.0.0.1:0"),
    Setting(
        name="capacity",
        help="Inventory file of devices that may register later; a request that only they could "
        "serve waits instead of being impossible.",
    ),
    Setting(name="keys", help="Keys file. [default: keys.json in the state folder, if there]"),
    Setting(name="tls_cert", help="PEM file of the doors' certificate chain; goes with --tls-key."),
    Setting(name="tls_key", help="PEM file of its private key."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSetting:
    """One value and where it comes from."""

    value: str | None
    source: str  #: "flag --listen", "variable SSGMD_LISTEN", "/etc/ssgmd.toml", "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything ssgmd is started with."""

    settings: Mapping[str, ResolvedSetting]  #: every name of `SETTINGS`, and time_scale
    parameters: Parameters
    parameter_sources: Mapping[str, ResolvedSetting]  #: those that the file gives

    def text(self, name: str) -> str | None:
        return self.settings[name].value

    def path(self, name: str) -> Path | None:
        value = self.settings[name].value
        return Path(value) if value else None


def resolve(flags: Mapping[str, str | None], environment: Mapping[str, str]) -> Config:
    """Flags by setting name, and `config`. Raises INVALID, naming file and key."""
    named = flags.get("config") or environment.get(FILE_VARIABLE)
    file = Path(named) if named else None
    given = _read(file) if file else {}
    parameters = given.pop("parameters", {})
    if not isinstance(parameters, dict):
        raise invalid(f"{file}: parameters must be a table")
    known = [setting.name for setting in SETTINGS]
    for name in given:
        if name not in known:
            raise invalid(f"{file}: {name!r} is unknown{_did_you_mean(name, known)}")
    told = {s.name: _told(s, flags, environment, given, file) for s in SETTINGS}
    scale = environment.get(SCALE_VARIABLE)  # of every program of the system: no setting of ours
    source = f"variable {SCALE_VARIABLE}" if scale else "default"
    told["time_scale"] = ResolvedSetting(value=scale or "1", source=source)
    try:
        value = overridden(Parameters(), parameters)
    except AppError as error:
        raise invalid(f"{file}: {error.message}") from None
    sources = {n: ResolvedSetting(value=str(v), source=str(file)) for n, v in parameters.items()}
    return Config(settings=told, parameters=value, parameter_sources=sources)


def _told(
    setting: Setting,
    flags: Mapping[str, str | None],
    environment: Mapping[str, str],
    given: Mapping[str, Any],
    file: Path | None,
) -> ResolvedSetting:
    if (flag := flags.get(setting.name)) is not None:
        return ResolvedSetting(value=flag, source=f"flag {setting.flag}")
    if variable := environment.get(setting.variable):
        return ResolvedSetting(value=variable, source=f"variable {setting.variable}")
    if setting.name in given:
        value = given[setting.name]
        if not isinstance(value, str):
            raise invalid(f"{file}: {setting.name} must be a string, got {value!r:.60}")
        return ResolvedSetting(value=value, source=str(file))
    return ResolvedSetting(value=setting.default, source="default")


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise invalid(f"the configuration {path} is larger than {FILE_BYTES_MAX} bytes")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise invalid(f"cannot read the configuration {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, UnicodeDecodeError
        raise invalid(f"{path} is no TOML: {error}") from None


def _did_you_mean(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, [*known, "parameters"], n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}"
