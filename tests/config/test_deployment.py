"""The schema and its defaults."""

import pytest
from pydantic import ValidationError

from tunan.config import Deployment, deployment_from
from tunan.errors import UsageError


def deployment(**values: object) -> Deployment:
    return deployment_from({"model": {"path": "/models/name"}, **values}, "test")


def test_a_model_path_is_enough_and_the_door_is_loopback() -> None:
    d = deployment()
    assert (d.gateway.host, d.gateway.port) == ("127.0.0.1", 8080)
    assert d.served_model_name == "name"
    assert d.warmup.requests == 100
    assert not d.model.trust_remote_code


def test_it_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        deployment().name = "other"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"memory": {"utilization": 1.5}}, "memory.utilization"),
        ({"parallel": {"tensor": 0}}, "parallel.tensor"),
        ({"parallel": {"tensor": True}}, "parallel.tensor"),
        ({"gateway": {"port": "8080"}}, "gateway.port"),
        ({"gateway": {"port": 70000}}, "gateway.port"),
        ({"name": "a/b"}, "`name`"),
        ({"target": "gpu"}, "'cpu'"),
        ({"parallel": {"pipeline": 2, "layer_partition": [1, 2, 3]}}, "layer_partition has 3"),
        ({"parallel": {"devices": [0, 0]}}, "twice"),
    ],
)
def test_a_wrong_value_is_refused_by_name(values: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        deployment(**values)
    assert "\n" not in str(error.value)


def test_integers_are_good_enough_for_fractions() -> None:
    assert deployment(memory={"utilization": 1, "kv_cache_gib": 2}).memory.kv_cache_gib == 2


@pytest.mark.parametrize("flag", ["--uds=/x", "--port", "--api-key", "--served_model_name=m"])
def test_flags_that_would_undo_the_supervisor_are_refused(flag: str) -> None:
    with pytest.raises(UsageError, match="is not handed to the engine; use"):
        deployment_from({"model": {"path": "/m"}, "engine_arguments": [flag, "1"]}, "test")
