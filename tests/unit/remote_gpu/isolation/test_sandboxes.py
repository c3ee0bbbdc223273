"""The sandboxes of leases, seen from gpud."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from corekit.errors import AppError
from gpu_scheduler.warm import tenant_folder
from remote_gpu.isolation.apply import Sandbox
from remote_gpu.isolation.policy import IsolationPolicy
from remote_gpu.isolation.removal import remove_tree
from remote_gpu.isolation.sandboxes import Sandboxes


@pytest.mark.parametrize(
    "policy", [IsolationPolicy(), IsolationPolicy(pid_namespace=True), IsolationPolicy(users=True)]
)
def test_a_cgroup_is_required_where_nothing_else_ends_processes(
    tmp_path: Path, policy: IsolationPolicy
) -> None:
    if policy.users and os.geteuid() != 0:
        pytest.skip("NOT TESTED: users of leases; run as root")
    (tmp_path / "cgroup.controllers").write_text("")
    number = os.getpid()
    (tmp_path / f"orchgpu-{number}").write_text("no folder can be made here")
    with contextlib.ExitStack() as stack:
        if not policy.pid_namespace and not policy.users:
            stack.enter_context(pytest.raises(AppError, match="no cgroups"))
        Sandboxes(replace(policy, cgroup=str(tmp_path)), tmp_path / "kept").close()


def _use(folder: Path, kept: Path) -> None:
    (folder / "left").write_bytes(b"x")
    modes = folder.stat().st_mode & 0o777, kept.stat().st_mode & 0o777
    assert modes == (0o700, 0o711)


@pytest.mark.asyncio
async def test_the_folder_of_a_sandbox_is_removed_with_it(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    sandboxes = Sandboxes(IsolationPolicy(), kept)
    one = await sandboxes.make("t", 1 << 20, ("cpu",), None)
    _use(Path(one.sandbox.folder), kept)
    await one.close()
    await one.close()
    sandboxes.close()
    assert _left(tmp_path) == ({"data-views", "kept", "scratch"}, [0o700])


def _left(state: Path) -> tuple[set[str], list[int]]:
    assert list((state / "scratch").iterdir()) == []
    modes = [one.stat().st_mode & 0o777 for one in (state / "kept").iterdir()]
    return {one.name for one in state.iterdir()}, modes


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: users of leases; run as root")
@pytest.mark.asyncio
async def test_kept_contents_get_the_tenants_group_without_following_links(tmp_path: Path) -> None:
    kept, elsewhere = tmp_path / "kept", tmp_path / "elsewhere"
    _before(kept, elsewhere)
    sandboxes = Sandboxes(IsolationPolicy(users=True), kept)
    try:
        made = [await sandboxes.make(tenant, 1, ("cpu",), None) for tenant in ("one", "one", "two")]
        found = [one.sandbox for one in made]
        assert len({one.user for one in found}) == 3
        assert found[0].group == found[1].group != found[2].group
        assert [Path(one.compiled).name for one in found] == ["0", "1", "0"]
        _check(kept, elsewhere, found[0], found[2])
        for one in made:
            await one.close()
        again = await sandboxes.make("one", 1, ("cpu",), None)
        assert (again.sandbox.group, again.sandbox.compiled) == (found[0].group, found[0].compiled)
        assert again.sandbox.user not in {one.user for one in found}
        await again.close()
    finally:
        sandboxes.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: users of leases; run as root")
@pytest.mark.asyncio
async def test_the_group_of_a_running_lease_is_not_reused(
    tmp_path: Path,
) -> None:
    kept, secret = tmp_path / "kept", tmp_path / "secret"
    secret.write_bytes(b"")
    compiled = kept / tenant_folder("one") / "compiled" / "0"
    step = compiled
    for _ in range(1200):  # deeper than Python recurses
        step.mkdir(parents=True)
        step = step / "d"
    os.link(secret, compiled / "linked")
    sandboxes = Sandboxes(IsolationPolicy(users=True), kept)
    try:
        one = await sandboxes.make("one", 1, ("cpu",), None)
        assert (secret.stat().st_uid, compiled.stat().st_uid) == (0, one.sandbox.user)
        remove_tree(kept / tenant_folder("one"))  # as the sweep of kept contents may
        two = await sandboxes.make("two", 1, ("cpu",), None)
        assert two.sandbox.group != one.sandbox.group
        for made in (one, two):
            await made.close()
        three = await sandboxes.make("three", 1, ("cpu",), None)
        assert three.sandbox.group == one.sandbox.group, "no running lease has it"
        await three.close()
    finally:
        sandboxes.close()


def _before(kept: Path, elsewhere: Path) -> None:
    """A folder of an earlier gpud's, and what a lease may have put where its host goes."""
    (elsewhere / "0").mkdir(parents=True)
    (elsewhere / "0" / "victim").write_bytes(b"")
    one, two = (kept / tenant_folder(name) for name in ("one", "two"))
    one.mkdir(parents=True)
    (one / ("a" * 64)).write_bytes(b"kept before")
    (one / ("a" * 64)).chmod(0o600)
    (one / "linked").symlink_to(elsewhere / "0" / "victim")
    (one / "compiled").symlink_to(elsewhere)
    (two / "compiled").mkdir(parents=True)
    (two / "compiled" / "0").write_bytes(b"no folder")


def _check(kept: Path, elsewhere: Path, first: Sandbox, other: Sandbox) -> None:
    victim = (elsewhere / "0" / "victim").stat()
    assert (victim.st_uid, victim.st_gid, victim.st_mode & 0o777) == (0, 0, 0o644)
    own = kept / tenant_folder("one")
    modes = [(one.stat().st_mode & 0o7777, one.stat().st_gid) for one in (own, own / ("a" * 64))]
    assert modes == [(0o2770, first.group), (0o660, first.group)]
    for sandbox in (first, other):
        compiled = Path(sandbox.compiled).lstat()
        assert (compiled.st_uid, compiled.st_mode & 0o7777) == (sandbox.user, 0o2770)
