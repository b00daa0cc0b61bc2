"""`gateway.etcd`: what it may say."""

from typing import Any

import pytest

from tunan.config import Gateway, deployment_from
from tunan.errors import UsageError


def etcd_of(**settings: Any) -> Any:
    """The section as it is read from a deployment file."""
    content = {"model": {"path": "/m"}, "gateway": {"etcd": settings}}
    return deployment_from(content, "deploy.yaml").gateway.etcd


def test_without_it_there_is_no_election() -> None:
    assert Gateway().etcd.endpoints == ()


def test_the_lease_lets_another_gateway_take_over_within_three_seconds() -> None:
    """Etcd looks for leases that have run out twice a second."""
    assert Gateway().etcd.lease_s + 0.5 < 3


def test_an_endpoint_given_twice_is_asked_once() -> None:
    assert etcd_of(endpoints=["http://a:1", "https://b:2/", "http://a:1/"]).endpoints == (
        "http://a:1",
        "https://b:2",
    )


def test_a_prefix_ends_at_a_slash() -> None:
    assert etcd_of(endpoints=["http://a:1"], prefix="/one").prefix == "/one/"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"endpoints": ["a:2379"]}, "a:2379 must be http://HOST:PORT or https://HOST:PORT"),
        ({"endpoints": ["http://u:p@a:1"]}, "must be http://HOST:PORT"),
        ({"endpoints": ["http://a:1/v3"]}, "must be http://HOST:PORT"),
        ({"hook": ["/h"]}, "hook means nothing without endpoints"),
        ({"lease_s": 1}, "`gateway.etcd.lease_s`: input should be greater than or equal to 2"),
        ({"lease_s": 2.5}, "`gateway.etcd.lease_s`"),
        ({"endpoints": ["http://a:1"], "hook": [""]}, "`gateway.etcd.hook.0`"),
        ({"endpoints": ["http://a:1"], "hook": "a b"}, "`gateway.etcd.hook`"),
        ({"endpoints": ["http://a:1"], "user": "u"}, "user and password_file go together"),
        ({"endpoint": ["http://a:1"]}, "did you mean `endpoints`?"),
    ],
)
def test_a_mistake_is_one_line_with_its_key(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as error:
        etcd_of(**settings)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
