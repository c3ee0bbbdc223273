"""Users of leases: no two hosts and no two leases have the same."""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path

import pytest

from remote_gpu.isolation.privileges import take
from remote_gpu.isolation.users import BLOCK, RANGE, UserBlock

LAST = range(RANGE.stop - 2 * BLOCK, RANGE.stop)  # no gpud of this machine comes so far


def test_two_hosts_of_a_machine_take_different_users(tmp_path: Path) -> None:
    within = LAST
    first, second = (UserBlock.take(within, tmp_path) for _ in range(2))
    assert set(first.ids).isdisjoint(second.ids)
    with pytest.raises(OSError, match="in use"):
        UserBlock.take(within, tmp_path)
    first.close()
    third = UserBlock.take(within, tmp_path)
    assert third.ids == first.ids
    for block in (second, third):
        block.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: users of leases; run as root")
def test_users_of_running_leftover_processes_are_not_lent(tmp_path: Path) -> None:
    within = LAST
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, user=within[7]):
        block = UserBlock.take(within, tmp_path)
        block.close()
        assert block.ids.start == within.start + BLOCK
    block = UserBlock.take(within, tmp_path)
    block.close()
    assert block.ids.start == within.start


def test_no_user_is_lent_twice_and_the_longest_free_one_is_next() -> None:
    block = UserBlock(range(2_000_000_000, 2_000_000_004))
    lent = [block.lend() for _ in range(3)]
    assert len({*lent, block.killer}) == 4
    with pytest.raises(OSError, match="in use"):
        block.lend()
    block.give_back(lent[1])
    assert block.lend() == lent[1]
    groups = list(itertools.islice(block.ids, 3))
    assert block.group_of(groups) == block.ids[3]
    with pytest.raises(OSError, match="groups"):
        block.group_of(block.ids)


def test_a_secret_is_taken_out_of_the_environment() -> None:
    environment = {"KEY": "secret", "OTHER": "1"}
    take(("KEY", "ABSENT"), environment)
    assert environment == {"OTHER": "1"}
