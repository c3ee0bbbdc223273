"""`ssgmd` as an operator types it: settings, keys, journal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpu_scheduler.daemon.access.keys import read_keys, verified
from gpu_scheduler.daemon.cli import main
from gpu_scheduler.daemon.log.engines.file import NAME
from tests.unit.gpu_scheduler_daemon.journals import opened


def ssgmd(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, arguments, env=environment, prog_name="ssgmd")


def test_config_show_names_every_source(tmp_path: Path) -> None:
    file = tmp_path / "ssgmd.toml"
    file.write_text('http = "127.0.0.1:4780"\n[parameters]\npolicy = "fair"\n')
    flags = ("--config", str(file), "--state", "/s")
    shown = ssgmd(*flags, "config", "show", SSGMD_LISTEN="127.0.0.1:1")
    lines = [line.split(maxsplit=2) for line in shown.output.splitlines()]
    assert ["state", "/s", "flag --state"] in lines
    assert ["listen", "127.0.0.1:1", "variable SSGMD_LISTEN"] in lines
    assert ["http", "127.0.0.1:4780", str(file)] in lines
    assert ["capacity", "-", "default"] in lines
    assert ["parameters.policy", "fair", str(file)] in lines
    value = json.loads(ssgmd(*flags, "config", "show", "--json").output)
    assert value["settings"]["state"] == {"value": "/s", "source": "flag --state"}
    assert value["parameters"]["policy"] == "fair"


def test_a_wrong_setting_ends_with_its_fault_before_anything_is_made(tmp_path: Path) -> None:
    file = tmp_path / "ssgmd.toml"
    file.write_text("lisen = 1")
    done = ssgmd("--config", str(file), "config", "show")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "did you mean 'listen'" in done.stderr
    done = ssgmd()
    assert done.exit_code == 2
    assert "--state, SSGMD_STATE" in done.stderr
    done = ssgmd("--state", str(tmp_path / "s"), "--tls-cert", "c.pem")
    assert done.exit_code == 2
    assert "--tls-cert and --tls-key go together" in done.stderr
    assert not (tmp_path / "s").exists()


def test_keys_are_added_listed_and_revoked(tmp_path: Path) -> None:
    state = ("--state", str(tmp_path))
    added = ssgmd(*state, "keys", "add", "gpu-a", "--role", "host", "--host", "gpu-a")
    key = added.output.strip()
    assert verified(key, read_keys(tmp_path / "keys.json").get) is not None
    again = ssgmd(*state, "keys", "add", "gpu-a", "--role", "reader")
    assert again.exit_code == 4
    listed = ssgmd(*state, "keys", "list")
    assert listed.output.split()[:3] == ["gpu-a", "host", "gpu-a"]
    as_json = ssgmd(*state, "keys", "list", "--json").output
    assert [entry["name"] for entry in json.loads(as_json)["keys"]] == ["gpu-a"]
    for text in (listed.output, as_json):
        assert "sha256" not in text
        assert key.partition(".")[2] not in text
    assert ssgmd(*state, "keys", "revoke", "gpu-a").exit_code == 0
    assert ssgmd(*state, "keys", "revoke", "gpu-a").exit_code == 3
    assert ssgmd(*state, "keys", "list").output == ""


@pytest.mark.parametrize("name", ["Gpu A", "a.b"])
def test_a_wrong_name_of_a_key_is_refused(tmp_path: Path, name: str) -> None:
    done = ssgmd("--state", str(tmp_path / "s"), "keys", "add", name, "--role", "host")
    assert done.exit_code == 2
    assert "not a valid key name" in done.stderr


def test_a_damaged_journal_is_checked_and_repaired(tmp_path: Path) -> None:
    state = ("--state", str(tmp_path))
    assert ssgmd(*state, "journal", "check").exit_code == 3
    opened(tmp_path)[0].close()
    assert ssgmd(*state, "journal", "check").exit_code == 0
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes() + b"garbage that ends\n")
    damaged = ssgmd(*state, "journal", "check")
    assert damaged.exit_code == 1
    assert f"ssgmd --state {tmp_path} journal repair" in damaged.stderr
    repaired = json.loads(ssgmd(*state, "journal", "repair", "--json").output)
    assert repaired["damaged_bytes"] == len("garbage that ends\n")
    assert Path(repaired["kept_as"]).read_bytes().endswith(b"garbage that ends\n")
    assert ssgmd(*state, "journal", "check").exit_code == 0
