"""`orchgpu orchestrate` authenticates by the key of a file, as every other program."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from corekit.errors import AppError, ErrorCode
from orchgpu.cli.commands.operation.orchestrate import command


def test_its_key_comes_from_a_private_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("no key")
    words = ["--scheduler", "127.0.0.1:4700", "--key-file", str(file)]
    for mode, code, said in (
        (0o644, ErrorCode.DENIED, "may be read by others"),
        (0o600, ErrorCode.INVALID, "holds no key"),
    ):
        file.chmod(mode)
        with pytest.raises(AppError, match=said) as caught:
            CliRunner().invoke(command, words, catch_exceptions=False)
        assert caught.value.code is code
