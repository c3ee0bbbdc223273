"""The command line of the live check."""

from __future__ import annotations

import argparse
import re
import secrets
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import tools.aws_live_check
from tools.aws_live_check.check import LiveCheck, performed
from tools.aws_live_check.cloud import FAILURES, say
from tools.aws_live_check.run import Run, read


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=tools.aws_live_check.__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    made.add_argument("--yes", action="store_true", help="do not ask")
    made.add_argument("--plan", action="store_true", help="print plan and cost only")
    made.add_argument("--clean-up", metavar="RUN", type=run_id, help="remove what this run left")
    made.add_argument("--folder", type=Path, default=Path(), help="for its files [default: .]")
    made.add_argument("--wait", type=float, default=900.0, help="seconds for uploads [900]")
    made.add_argument("--interval", type=float, default=10.0, help="seconds between uploads [10]")
    made.add_argument("--scheduler", metavar="ADDR:PORT", help="also one job with a device")
    made.add_argument("--subnets", nargs="*", default=[], help="of the job's function")
    made.add_argument("--groups", nargs="*", default=[], help="its security groups")
    return made


def run_id(text: str) -> str:
    """All ids have one length, so that none begins with another."""
    if not re.fullmatch("[0-9a-f]{8}", text):
        raise argparse.ArgumentTypeError("a run's id has 8 hexadecimal digits")
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """0: everything worked and is removed; 1: it did not, or something is left; 130: Ctrl-C."""
    options = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    run = read(options.clean_up, options.folder) if options.clean_up else Run(run=new_id())
    check = LiveCheck(run, options)
    try:
        return _cleaned(check) if options.clean_up else _checked(check)
    except KeyboardInterrupt:
        return 130
    except FAILURES as error:
        say(f"aws_live_check: {error}")
        return 1
    finally:
        check.clients.close()


def new_id() -> str:
    return secrets.token_hex(4)


def _checked(check: LiveCheck) -> int:
    options = check.options
    check.look()
    say(check.plan())
    if options.plan or not (options.yes or input("Continue? [y/N] ").lower() == "y"):
        return 0
    check.run.write(options.folder)
    performed(check)
    return 1 if check.run.error or check.run.left else 0


def _cleaned(check: LiveCheck) -> int:
    """Clean up after an earlier run; its file, where there is one, has its account."""
    known = (check.run.account, check.run.state_bucket_existed)
    check.look()
    if known[0] not in ("", check.run.account):
        say(f"run {check.run.run} was in account {known[0]}, not in {check.run.account}")
        return 1
    check.run.state_bucket_existed = known[1]
    check.timed("clean-up", check.clean_up)
    say("\n".join(check.run.left) or "nothing is left")
    return 1 if check.run.left else 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
