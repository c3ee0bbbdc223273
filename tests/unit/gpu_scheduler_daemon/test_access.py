"""The key of a client: flag before variable; a malformed key is refused before it is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.client.access import Access, find_access
from gpu_scheduler.protocol.keys import name_of, new_key, session_of


def key_file(folder: Path, name: str, mode: int = 0o600) -> tuple[Path, str]:
    path, key = folder / name, new_key(name)
    path.write_text(key + "\n")
    path.chmod(mode)
    return path, key


def test_a_flag_goes_before_the_variables_and_the_key_before_its_file(tmp_path: Path) -> None:
    path, key = key_file(tmp_path, "flag")
    other, by_file = key_file(tmp_path, "file")
    by_value = new_key("value")
    environment = {"ORCHGPU_SCHEDULER_KEY_FILE": str(other)}
    assert find_access(environment={}).key is None
    assert find_access(environment=environment).key == by_file
    environment["ORCHGPU_SCHEDULER_KEY"] = f" {by_value}\n"
    assert find_access(environment=environment).key == by_value
    assert find_access(key_file=path, environment=environment).key == key


def test_a_key_never_shows_in_words_for_people() -> None:
    key = new_key("ops")
    assert key.rpartition(".")[2] not in repr(Access(key=key))


def test_the_session_of_a_key_carries_its_name_once() -> None:
    session = Access(key=new_key("gpu-a")).session("s")
    assert session == "gpu-a/s" == session_of("gpu-a", session)
    assert Access().session("s") == "s"


@pytest.mark.parametrize(
    "text", ["", "ops", "ops.", "Ops." + "a" * 43, "a/b." + "a" * 43, "." * 44]
)
def test_a_malformed_key_is_refused_before_it_is_sent(text: str) -> None:
    assert name_of(text) is None
    with pytest.raises(AppError, match="ssgmd keys add"):
        Access(key=text)


def test_a_key_file_is_private_and_holds_a_key(tmp_path: Path) -> None:
    path, _ = key_file(tmp_path, "open", mode=0o640)
    with pytest.raises(AppError, match="chmod 600") as caught:
        find_access(key_file=path, environment={})
    assert caught.value.code is ErrorCode.DENIED
    path.chmod(0o600)
    path.write_bytes(b"\xff")
    with pytest.raises(AppError, match="not a text file"):
        find_access(key_file=path, environment={})
    with pytest.raises(AppError, match="No such file"):
        find_access(key_file=tmp_path / "none", environment={})


def test_an_unusable_ca_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("hello")
    with pytest.raises(AppError, match=r"ca\.pem as the scheduler's CA"):
        Access(ca=tmp_path / "ca.pem").tls()
    assert Access().tls() is None
