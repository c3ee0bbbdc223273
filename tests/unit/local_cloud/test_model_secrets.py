"""Parameters and secrets over time: recovery windows, versions that are kept, restored state."""

from __future__ import annotations

from pathlib import Path

import pytest

from local_cloud.model.cloud import Cloud
from local_cloud.model.errors import CloudError
from local_cloud.model.secrets import VERSIONS_MAX, Parameter, SecretValue
from local_cloud.server.restore import restore
from local_cloud.server.state_log import StateLog

DAY_S = 86400.0


def value(number: str, text: str) -> SecretValue:
    return SecretValue(id=number, created_at_s=0.0, text=text)


def put(cloud: Cloud, text: str) -> None:
    wanted = Parameter(name="/a/b", type="SecureString")
    cloud.parameters.put(1.0, wanted, text, overwrite=True)


def test_a_secret_is_gone_after_its_recovery_window() -> None:
    secrets = Cloud().secrets
    secrets.create(0.0, "s", value("1", "x"))
    secrets.delete(0.0, "s", 7)
    assert secrets.described(7 * DAY_S - 1, "s").gone_at_s == 7 * DAY_S
    with pytest.raises(CloudError, match="ResourceNotFoundException"):
        secrets.described(7 * DAY_S, "s")
    secrets.create(7 * DAY_S, "s", None)


@pytest.mark.parametrize("name", ["", "a b", "ü", "x" * 513])
def test_names_of_secrets_are_checked(name: str) -> None:
    with pytest.raises(CloudError, match="ValidationException"):
        Cloud().secrets.create(0.0, name, None)


def test_the_newest_versions_of_a_parameter_are_kept() -> None:
    cloud = Cloud()
    for number in range(VERSIONS_MAX + 1):
        put(cloud, str(number))
    assert cloud.parameters.get("/a/b:2")[1].value == "1"
    with pytest.raises(CloudError, match="ParameterVersionNotFound"):
        cloud.parameters.get("/a/b:1")


def test_a_restart_keeps_all_of_it(tmp_path: Path) -> None:
    log = StateLog(tmp_path, lambda flush: flush())
    cloud = Cloud(recorder=log)
    put(cloud, "one")
    put(cloud, "two")
    made = cloud.secrets.create(5.0, "team/s", value("1", "x"), "key")
    cloud.secrets.put(6.0, "team/s", value("2", "y"))
    cloud.secrets.create(5.0, "gone", None)
    cloud.secrets.delete(6.0, "gone", 0)
    log.close()
    again = StateLog(tmp_path, lambda flush: flush())
    restored = Cloud(recorder=again)
    restore(restored, again, 10.0)
    again.close()
    assert restored.parameters.get("/a/b") == cloud.parameters.get("/a/b")
    assert restored.parameters.get("/a/b:1")[1].value == "one"
    assert restored.secrets.get(10.0, made.arn) == cloud.secrets.get(10.0, made.arn)
    with pytest.raises(CloudError, match="ResourceNotFoundException"):
        restored.secrets.described(10.0, "gone")
