"""Settings of ssgmd and their sources: a flag, else a variable, else its file, else the default.

The file is TOML: the names of `SETTINGS` at the top level, and in `[parameters]` those of
`gpu_scheduler.parameters.NAMES` (quoted, where they contain a tenant). An override by `ssgm set`
at run time is in the journal, not here.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from corekit.aio.environment import SCALE_VARIABLE
from corekit.cli.settings import Option, Setting, settings_of
from corekit.errors import AppError, invalid
from corekit.suggest import one_of_known
from gpu_scheduler.daemon.log.port import FILE, LogAddress
from gpu_scheduler.daemon.log.registry import parse_log_address
from gpu_scheduler.parameters import Parameters, overridden
from gpu_scheduler.policy_registry import installed_policies

#: Path of the file; `--config` overrides it.
FILE_VARIABLE = "SSGMD_CONFIG"
#: Largest file; one with 1,000 tenants has less than 200 KB.
FILE_BYTES_MAX = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOptions:
    """The settings of ssgmd, as keys of its file: each is a flag and a variable too."""

    state: Annotated[
        str | None, Option("Folder of journal, lock and master key; created when absent.")
    ] = None
    log: Annotated[
        str | None,
        Option(
            "Address of the journal, when it is not in the state folder: postgres://…, "
            "dynamodb://…, s3://… (docs/how-to/scheduler.md)."
        ),
    ] = None
    listen: Annotated[str, Option("Address of the socket endpoint.")] = "127.0.0.1:0"
    http: Annotated[str, Option("Address of the HTTP endpoint.")] = "127.0.0.1:0"
    advertise: Annotated[
        str | None,
        Option(
            "Address of the socket endpoint as clients reach it; standbys name it. "
            "[default: that of --listen]"
        ),
    ] = None
    advertise_http: Annotated[str | None, Option("As --advertise, of the HTTP endpoint.")] = None
    standby: Annotated[bool, Option("Follow the log, and take over when its writer is silent.")] = (
        False
    )
    capacity: Annotated[
        str | None,
        Option(
            "File of devices that may register later: offers of `orchgpu fleet`, or an inventory; "
            "a request that only they could serve waits instead of being refused as impossible."
        ),
    ] = None
    wake: Annotated[
        str | None,
        Option(
            "Queues of wake-ups for orchestrators that run only while they have something to do: "
            "sqs:https://sqs.REGION.amazonaws.com/ACCOUNT (docs/how-to/serverless.md)."
        ),
    ] = None
    keys: Annotated[
        str | None,
        Option(
            "Keys of clients and hosts: a file, secretsmanager:NAME or ssm:NAME. "
            "[default: keys.json in the state folder, if it exists]"
        ),
    ] = None
    join_iam: Annotated[
        str | None,
        Option(
            "TOML file of the IAM roles whose holders may join as hosts without a key of their"
            " own; read again when it changes."
        ),
    ] = None
    master_key: Annotated[
        str | None,
        Option(
            "Master key of the leases' secrets: a file, secretsmanager:NAME or ssm:NAME; equal on "
            "leader and standby. [default: master.key in the state folder, made for a new one]"
        ),
    ] = None
    tls_cert: Annotated[
        str | None, Option("PEM file of the endpoints' certificate chain; needs --tls-key.")
    ] = None
    tls_key: Annotated[
        str | None, Option("PEM file of the certificate's private key; needs --tls-cert.")
    ] = None


SETTINGS = settings_of(DaemonOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSetting:
    """The value of a setting, and its source."""

    value: str | None
    source: str  #: "flag --listen", "variable SSGMD_LISTEN", "/etc/ssgmd.toml", "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of a start of ssgmd."""

    settings: Mapping[str, ResolvedSetting]  #: every name of `SETTINGS`, and time_scale
    parameters: Parameters
    parameter_sources: Mapping[str, ResolvedSetting]  #: of those in the file

    def text(self, name: str) -> str | None:
        return self.settings[name].value

    def switch(self, name: str) -> bool:
        return self.settings[name].value == "yes"

    def path(self, name: str) -> Path | None:
        value = self.settings[name].value
        return Path(value) if value else None


def variable_of(setting: Setting) -> str:
    """The variable of a setting."""
    return f"SSGMD_{setting.name.upper()}"


def resolve(flags: Mapping[str, str | None], environment: Mapping[str, str]) -> Config:
    """Resolve every setting. `flags`: by setting name, and `config`.

    Raises INVALID, naming file and key.
    """
    named = flags.get("config") or environment.get(FILE_VARIABLE)
    file = Path(named) if named else None
    given = _read(file) if file else {}
    parameters = given.pop("parameters", {})
    if not isinstance(parameters, dict):
        raise invalid(f"{file}: parameters must be a table")
    known = [*(setting.name for setting in SETTINGS), "parameters"]
    for name in given:
        if name not in known:
            raise invalid(f"{file}: {name!r} is unknown{one_of_known(name, known)}")
    settings = {s.name: _resolved(s, flags, environment, given, file) for s in SETTINGS}
    scale = environment.get(SCALE_VARIABLE)  # shared by all programs of the system
    source = f"variable {SCALE_VARIABLE}" if scale else "default"
    settings["time_scale"] = ResolvedSetting(value=scale or "1", source=source)
    try:
        value = overridden(Parameters(), parameters, installed_policies())
    except AppError as error:
        raise invalid(f"{file}: {error.message}") from None
    sources = {n: ResolvedSetting(value=str(v), source=str(file)) for n, v in parameters.items()}
    return Config(settings=settings, parameters=value, parameter_sources=sources)


def state_of(found: Config) -> Path:
    """The state folder. Raises INVALID when none is given."""
    state = found.path("state")
    if state is None:
        raise invalid(
            "which state folder? Give --state, SSGMD_STATE, or state in the --config file"
        )
    return state


def log_address_of(found: Config) -> LogAddress | None:
    """The log that holds the journal; None: the state folder does. Raises INVALID."""
    given = found.text("log")
    if not given:
        return None
    address = parse_log_address(given)
    if address.scheme != FILE:
        return address
    if address.host or Path("/", address.path) != state_of(found).absolute():
        text = f"--log {given}: a journal file is in the state folder; give --state /{address.path}"
        raise invalid(text)
    return None


def _resolved(
    setting: Setting,
    flags: Mapping[str, str | None],
    environment: Mapping[str, str],
    given: Mapping[str, object],
    file: Path | None,
) -> ResolvedSetting:
    is_switch, name = setting.type is bool, variable_of(setting)
    if (flag := flags.get(setting.name)) is not None:
        return ResolvedSetting(value=flag, source=f"flag {setting.flag}")
    if variable := environment.get(name):
        if is_switch and variable not in _SWITCH:
            raise invalid(f"{name} must be yes or no, got {variable!r:.60}")
        variable = _SWITCH[variable] if is_switch else variable
        return ResolvedSetting(value=variable, source=f"variable {name}")
    if setting.name in given:
        value = given[setting.name]
        if is_switch and isinstance(value, bool):
            value = "yes" if value else "no"
        if is_switch and value not in ("yes", "no"):
            raise invalid(f"{file}: {setting.name} must be true or false, got {value!r:.60}")
        if not isinstance(value, str):
            raise invalid(f"{file}: {setting.name} must be a string, got {value!r:.60}")
        return ResolvedSetting(value=value, source=str(file))
    return ResolvedSetting(value="no" if is_switch else setting.default, source="default")


#: Values of a switch in a variable.
_SWITCH = {"yes": "yes", "1": "yes", "true": "yes", "no": "no", "0": "no", "false": "no"}


def _read(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise invalid(f"the configuration {path} is larger than {FILE_BYTES_MAX} bytes")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise invalid(f"cannot read the configuration {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, UnicodeDecodeError
        raise invalid(f"{path} is not valid TOML: {error}") from None
