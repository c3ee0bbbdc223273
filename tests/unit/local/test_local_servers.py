"""What the servers of a cloud of own hosts find on their machine before they start."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from corekit.errors import AppError
from orchgpu.local import servers


def test_a_link_to_the_sockets_is_ours_and_leads_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / ("deep" * 20)
    link = servers._socket_folder(state)
    try:
        assert link.readlink() == state
        assert servers._socket_folder(state) == link, "it is kept"
        with monkeypatch.context() as patch:
            patch.setattr(os, "getuid", lambda: 12345)
            with pytest.raises(AppError, match="another user"):
                servers._socket_folder(state)
        link.unlink()
        link.symlink_to(tmp_path)
        with pytest.raises(AppError, match="leads elsewhere"):
            servers._socket_folder(state)
        link.unlink()
        link.touch()
        with pytest.raises(AppError, match=str(link)):
            servers._socket_folder(state)
    finally:
        link.unlink()


def test_an_empty_token_of_an_interrupted_start_is_made_again(tmp_path: Path) -> None:
    token, settings = tmp_path / "token", tmp_path / "notification.toml"
    token.touch(mode=0o600)
    servers._write_webhook(settings, "http://localhost:1", token)
    made = token.read_text()
    assert len(made) > 16
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert made in settings.read_text()
    servers._write_webhook(settings, "http://localhost:1", token)
    assert token.read_text() == made
