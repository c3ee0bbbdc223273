"""The fleet of a local system: hosts are processes of this machine, in a folder below its home."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from corekit.errors import invalid
from orchgpu.fleet.ports.processes import ProcessSettings, write_settings
from orchgpu.local.home import Home, default_home

#: The pool of a local fleet.
POOL = "local"
#: The stated time from the start of a local host to its program: a machine boots for minutes.
DELAY_S = 2.0
#: Until a start time is learned; a busy laptop takes many times the usual three seconds.
START_S = 10.0
#: Small ones, so that a person sees hosts come and go: hosts for the work of 5 s, idle for 15 s.
_OFFERS = """\
# Hosts of the local system (orchgpu up --fleet {least}-{most}); a change is read at once.
offers:
  - name: {pool}
    kind: cpu
    memory: {memory_mib}
    min: {least}
    max: {most}
    idle_s: 15
    start_s: {start_s}
target_wait_s: 5
patience_s: 0.5
"""


@dataclass(frozen=True, slots=True)
class LocalFleet:
    """The files of a local fleet."""

    folder: Path

    @property
    def offers(self) -> Path:
        return self.folder / "offers.yaml"

    @property
    def memory(self) -> Path:
        return self.folder / "memory.json"

    @property
    def provider(self) -> str:
        """As `--provider` names it."""
        return f"processes:{self.folder}"


def fleet_of(home: Home) -> LocalFleet:
    """The fleet of a home, whether it has one or not."""
    return LocalFleet(home.state("fleet"))


def local_fleet() -> LocalFleet | None:
    """The fleet of the running local system; None: it has none, or none runs."""
    home = default_home()
    found = fleet_of(home)
    return found if home.supervised() and found.offers.exists() else None


def parse_range(text: str) -> tuple[int, int]:
    """`0-3` → (0, 3). Raises INVALID."""
    least, dash, most = text.partition("-")
    if not (least.isdecimal() and most.isdecimal() and dash) or not int(least) <= int(most) <= 99:
        raise invalid(f"--fleet {text!r} is not MIN-MAX, such as 0-3; at most 99 hosts")
    if int(most) == 0:
        raise invalid("--fleet: at most 0 hosts serve nothing; give a maximum of 1 at least")
    return int(least), int(most)


def write_offers(home: Home, hosts: tuple[int, int] | None, memory_mib: int) -> None:
    """Write the offers before the system starts; without a fleet remove those of an earlier one."""
    file = fleet_of(home).offers
    if hosts is None:
        file.unlink(missing_ok=True)
        return
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    least, most = hosts
    file.write_text(
        _OFFERS.format(pool=POOL, least=least, most=most, memory_mib=memory_mib, start_s=START_S)
    )


def write_processes(home: Home, command: Sequence[str]) -> LocalFleet:
    """Write how a host is started; `command` as in `ProcessSettings`."""
    fleet = fleet_of(home)
    settings = ProcessSettings(
        command=tuple(command), delay_s=DELAY_S, lifeline=str(home.lock_file)
    )
    write_settings(fleet.folder, settings)
    return fleet
