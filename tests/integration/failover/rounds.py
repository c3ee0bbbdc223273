"""Rounds of faults in the leader of two `ssgmd --standby`, and the times of the take-overs.

    python -m tests.integration.failover.rounds --engine postgres --rounds 40 --out rounds.jsonl

Appends one line per round to the file, and prints the table of all its rounds. Cuts are made in
network namespaces where this machine allows them; else through links, after a warning.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from tests.integration.failover.inside import Plan
from tests.integration.failover.links import Link
from tests.integration.failover.networks import NETWORKS
from tests.integration.failover.pair import FAULTS
from tests.integration.failover.timeline import Gap, table
from tests.log_engines import ENGINES
from tests.namespaces import unshared, why_not_unshared

ROOT = Path(__file__).parents[3]
_ENDPOINT = re.compile(r"endpoint=http://([^:&]+):(\d+)")


def best_network() -> str:
    """`namespaces` where this machine allows them; else `links`."""
    return "namespaces" if why_not_unshared() is None else "links"


@contextlib.asynccontextmanager
async def socket_of(log: str, folder: Path) -> AsyncIterator[tuple[str, Path]]:
    """The address of a log with `{}` for host and port, and a Unix socket to its engine.

    A socket is reached from every network namespace.
    """
    if (endpoint := _ENDPOINT.search(log)) is not None:
        path = folder / "engine"
        async with Link(path, (endpoint[1], int(endpoint[2]))):
            yield log.replace(f"{endpoint[1]}:{endpoint[2]}", "{}"), path
        return
    (server,) = re.findall(r"host=([^&]+)&", log)
    address = log.replace(f"host={server}&", "").replace("@/", "@{}/")
    yield address, Path(server, ".s.PGSQL.5432")


async def rounds(
    log: str, network: str, faults: Sequence[str], each: Callable[[str], None] | None = None
) -> list[Gap]:
    """Run the rounds in a process of their own. Raises AssertionError with its log."""
    with tempfile.TemporaryDirectory(prefix="rounds-") as name:  # a socket's path is at most 107
        folder = Path(name)
        async with socket_of(log, folder) as (address, engine):
            plan = Plan(
                log=address,
                engine=str(engine),
                network=network,
                faults=tuple(faults),
                folder=name,
            )
            prefix = unshared() if network == "namespaces" else ()
            line = [*prefix, sys.executable, "-m", "tests.integration.failover.inside"]
            line.append(json.dumps(dataclasses.asdict(plan)))
            return await _gaps(line, folder, each or (lambda _: None))


async def _gaps(line: list[str], folder: Path, each: Callable[[str], None]) -> list[Gap]:
    fields = {field.name for field in dataclasses.fields(Gap)}
    gaps = []
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *line, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=log
        )
        try:
            assert process.stdout is not None
            async for text in process.stdout:
                found = json.loads(text)
                gaps.append(Gap(**{key: found[key] for key in fields}))
                each(text.decode())
            status = await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()  # it ends its own programs
                await process.wait()
    assert status == 0, _logs(folder)
    return gaps


def _logs(folder: Path) -> str:
    ends = [path.read_text()[-3000:] for path in sorted(folder.glob("*.log"))]
    return "\n".join([(folder / "log").read_text(), *ends])


def main() -> None:
    """Run the rounds of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=sorted(ENGINES), default="postgres")
    parser.add_argument("--network", choices=sorted(NETWORKS), default=None)
    parser.add_argument("--fault", action="append", choices=FAULTS, help="default: each in turn")
    parser.add_argument("--rounds", type=int, default=len(FAULTS))
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    network = given.network or best_network()
    if given.network is None and network == "links":
        sys.stderr.write(
            f"WARNING: cuts are made in links, not in a network: {why_not_unshared()}\n"
        )
    faults = given.fault or FAULTS
    plan = [faults[number % len(faults)] for number in range(given.rounds)]

    def keep(text: str) -> None:
        line = {"engine": given.engine, "network": network, **json.loads(text)}
        with given.out.open("a") as out:
            out.write(json.dumps(line) + "\n")
        sys.stderr.write(f"{line['fault']}: {line['granted_s']:.2f} s\n")

    with ENGINES[given.engine]() as running:
        os.environ.update(running.environment)
        asyncio.run(rounds(running.fresh(), network, plan, keep))
    sys.stdout.write(table(given.out.read_text().splitlines()))


if __name__ == "__main__":
    main()
