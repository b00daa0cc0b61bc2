"""`replicas`: how many engines are started here, and which run elsewhere."""

from pathlib import Path

import pytest

from tunan.config import Deployment, RemoteReplica, Replicas, deployment_from, load_deployment
from tunan.errors import UsageError

URL = "http://10.0.0.2:8000"


def replicas(value: object) -> Replicas:
    return deployment_from({"model": {"path": "/m"}, "replicas": value}, "test").replicas


def test_unset_it_is_one_replica_on_this_machine() -> None:
    d = deployment_from({"model": {"path": "/m"}}, "test")
    assert (d.replicas.count, d.replicas.managed, d.replicas.elsewhere) == (1, 1, ())


def test_a_list_is_of_engines_elsewhere_and_starts_none_here() -> None:
    read = replicas([{"url": f"{URL}/"}, {"url": "https://host", "role": "standby"}])
    assert read.managed == 0
    assert read.elsewhere == (
        RemoteReplica(url=URL),
        RemoteReplica(url="https://host", role="standby"),
    )


def test_engines_here_and_elsewhere_go_together() -> None:
    read = replicas({"count": 2, "standby": 1, "elsewhere": [{"url": URL}]})
    assert (read.managed, len(read.elsewhere)) == (3, 1)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"count": 0}, "no replica is active"),
        ({"count": 0, "standby": 1}, "no replica is active"),
        ([{"url": URL, "role": "standby"}], "no replica is active"),
        ([], "no replica is active"),
        ([{"url": URL}, {"url": f"{URL}/"}], "a url twice"),
        ([{"url": "10.0.0.2:8000"}], "must be http://HOST:PORT"),
        ([{"url": ""}], "must be http://HOST:PORT"),
        ([{"url": "http://"}], "must be http://HOST:PORT"),
        ([{"url": "http://h:99999"}], "must be http://HOST:PORT"),
        ([{"url": "http://[::1"}], "must be http://HOST:PORT"),
        ([{"url": "http://user:secret@h"}], "must be http://HOST:PORT"),
        ([{"url": f"{URL}/v1"}], "must be http://HOST:PORT"),
        ([{"uri": URL}], "did you mean `url`"),
        ([URL], "must be a section with keys"),
        ({"restart": {"failures": 0}}, "replicas.restart.failures"),
    ],
)
def test_what_makes_no_service_is_refused_in_one_line(value: object, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        replicas(value)
    assert "\n" not in str(error.value)


def test_options_that_are_not_given_leave_the_list_of_a_file_alone(tmp_path: Path) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_text(f"model: {{path: /m}}\nreplicas: [{{url: '{URL}'}}]\n")
    unset = {"replicas": {"count": None}}
    assert load_deployment(file, unset).replicas.elsewhere == (RemoteReplica(url=URL),)
    assert load_deployment(file, {"replicas": {"count": 2}}).replicas == Replicas(count=2)
    file.write_text("model: {path: /m}\nreplicas: []\n")
    with pytest.raises(UsageError, match=r"deploy\.yaml:2: .*no replica is active"):
        load_deployment(file, unset)


def test_the_schema_allows_both_forms() -> None:
    section, engines = Deployment.model_json_schema()["$defs"]["Replicas"]["anyOf"]
    assert set(section["properties"]) == {"count", "standby", "elsewhere", "restart"}
    assert engines == {"type": "array", "items": {"$ref": "#/$defs/RemoteReplica"}}
