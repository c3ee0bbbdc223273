"""Engines by the scheme of an address, found by presence; parsing of addresses."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from corekit.errors import AppError, ErrorCode, invalid
from corekit.plugins import find_plugins
from corekit.suggest import one_of_known
from gpu_scheduler.daemon.log.port import FILE, Log, LogAddress, LogEngine

GROUP = "orchgpu.logs"
_PLUGINS = (GROUP, "gpu_scheduler.daemon.log.engines", "ENGINE")
#: Other names of the same engine.
_ALIASES = {"postgresql": "postgres"}


def installed_engines() -> tuple[str, ...]:
    """Names of all engines; nothing is imported."""
    return tuple(sorted(find_plugins(*_PLUGINS)))


def parse_log_address(text: str, given: str = "--log") -> LogAddress:
    """Parse `SCHEME://[USER@]HOST/PATH?OPTION=VALUE`. Raises INVALID, naming the option `given`."""
    try:
        parts = urlsplit(text)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True))
    except ValueError:
        options = {}
        parts = urlsplit(text.partition("?")[0])
        if text.partition("?")[2]:
            raise invalid(f"{given}: expected options in the form ?NAME=VALUE&NAME=VALUE") from None
    if not parts.scheme or "://" not in text:
        raise invalid(
            f"{given}: expected an address such as {FILE}:///var/lib/ssgmd or s3://BUCKET/NAME"
        )
    secret = parts.password is not None or any("password" in name.lower() for name in options)
    if secret:
        why = "every user of this machine could read it there. Use a passfile (?passfile=PATH) or "
        raise invalid(
            f"{given}: a password in the address is refused: {why}a variable (PGPASSWORD)"
        )
    return LogAddress(
        scheme=_ALIASES.get(parts.scheme, parts.scheme),
        text=text,
        host=parts.netloc.rpartition("@")[2],
        path=unquote(parts.path.lstrip("/")),
        user=unquote(parts.username or ""),
        options=options,
    )


def file_address(folder: Path) -> LogAddress:
    """The address of the journal in a state folder."""
    path = str(folder.absolute())
    return LogAddress(scheme=FILE, text=f"{path}/journal", host="", path=path, user="", options={})


def open_log(address: LogAddress, call_s: float) -> Log:
    """Open a log. Raises INVALID for an unknown scheme or option, and the engine's errors."""
    return _engine(address).open(address, call_s)


def _engine(address: LogAddress) -> LogEngine:
    points = find_plugins(*_PLUGINS)
    point = points.get(address.scheme)
    if point is None:
        known = sorted(points)
        text = f"--log: there is no engine for {address.scheme}://"
        raise invalid(text + one_of_known(address.scheme, known))
    try:
        engine: LogEngine = point.load()
    except ImportError as error:
        text = f"--log: {address.scheme}:// needs a library that is not installed ({error.name}); "
        text += f"pip install 'orchgpu[{address.scheme}]'"
        raise AppError(ErrorCode.NOT_FOUND, text) from None
    return engine


def only_options(address: LogAddress, known: tuple[str, ...], given: str = "--log") -> None:
    """Raise INVALID for an option that the engine does not know; `given` named the address."""
    for name in address.options:
        if name not in known:
            text = f"{given}: {address.scheme}:// has no option {name!r}"
            raise invalid(text + one_of_known(name, known))
