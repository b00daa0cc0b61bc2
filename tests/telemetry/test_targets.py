"""Whose metrics a monitor shows, by the deployment file and the options."""

import ssl
from pathlib import Path
from typing import Any

import pytest

from tunan.config import Deployment, Monitor, deployment_from
from tunan.errors import UsageError
from tunan.telemetry.targets import Target, asking_of, gateway_page

KEY = "a-key-of-enough-length"


def deployment(**values: Any) -> Deployment:
    return deployment_from({"model": {"path": "/m"}, **values}, "test")


def urls_of(deployment: Deployment) -> list[str]:
    return [target.url for target in asking_of(deployment.monitor, deployment).targets]


@pytest.mark.parametrize(
    ("url", "instance"),
    [
        ("http://10.0.0.5:8080/metrics", "10.0.0.5:8080"),
        ("https://[fd00::1]:8080/metrics", "[fd00::1]:8080"),
        ("http://gateway/a/b", "gateway/a/b"),
        ("http://gateway:1/metrics?x=1", "gateway:1/metrics?x=1"),
    ],
)
def test_a_target_is_called_as_prometheus_calls_it(url: str, instance: str) -> None:
    assert Target(url).instance == instance


@pytest.mark.parametrize(
    ("gateway", "url"),
    [
        ({}, "http://127.0.0.1:8080/metrics"),
        ({"host": "0.0.0.0", "port": 9}, "http://127.0.0.1:9/metrics"),
        ({"host": "::", "port": 9}, "http://[::1]:9/metrics"),
        ({"host": "10.0.0.5", "tls_cert_file": "/c"}, "https://10.0.0.5:8080/metrics"),
    ],
    ids=str,
)
def test_a_gateway_s_page_is_where_it_listens(gateway: dict[str, Any], url: str) -> None:
    assert gateway_page(deployment(gateway=gateway).gateway) == url


def test_without_a_page_named_it_is_the_gateway_s() -> None:
    assert urls_of(deployment()) == ["http://127.0.0.1:8080/metrics"]
    assert urls_of(deployment(gateway={"port": 0})) == []  # nobody knows which
    assert asking_of(Monitor(), None).targets == ()


def test_pages_that_are_named_stand_for_it_each_once_and_none_for_none() -> None:
    named = ["http://a:1", "http://a:1/metrics", "http://b:2/x"]
    assert urls_of(deployment(monitor={"scrape": named})) == [
        "http://a:1/metrics",
        "http://b:2/x",
    ]
    assert urls_of(deployment(monitor={"scrape": []})) == []


@pytest.mark.parametrize(("head", "count"), [("127.0.0.1", 1), ("192.0.2.1", 0), ("a..b", 0)])
def test_of_several_machines_only_the_head_has_the_gateway(head: str, count: int) -> None:
    assert len(urls_of(deployment(nodes=[head, "192.0.2.2"]))) == count


@pytest.mark.parametrize(
    "url",
    ["", "host:8080", "ftp://a", "http://", "http://a:0", "http://a:99999", "http://u:p@a",
     "http://a b", "http://a/#x", "http://a\n", "http://ä"],
)  # fmt: skip
def test_what_is_no_address_is_refused_in_one_line(url: str) -> None:
    with pytest.raises(UsageError, match=r"monitor\.scrape"):
        deployment(monitor={"scrape": [url]})


def test_the_gateway_is_shown_its_own_key_and_nobody_else(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"# ours\n{KEY}\nanother-key-of-length\n")
    gateway = {"api_keys_file": str(keys)}
    ours, other = (
        deployment(gateway=gateway),
        deployment(gateway=gateway, monitor={"scrape": ["http://b:2"]}),
    )
    assert asking_of(ours.monitor, ours).key == KEY
    assert asking_of(other.monitor, other).key == ""
    for text in ("sha256:" + "0" * 64, "", "ä"):
        keys.write_text(text)
        assert asking_of(ours.monitor, ours).key == ""
    keys.unlink()
    assert asking_of(ours.monitor, ours).key == ""


def test_a_key_file_that_is_named_must_hold_one(tmp_path: Path) -> None:
    file = tmp_path / "key"
    monitor = Monitor(scrape=("http://b:2",), scrape_key_file=file)
    for text in (None, "", "sha256:" + "0" * 64, "ä", "a\x07b"):
        if text is not None:
            file.write_text(text)
        with pytest.raises(UsageError, match=str(file)) as error:
            asking_of(monitor, None)
        assert "a\x07b" not in str(error.value)
    file.write_text(f"{KEY}\n")
    assert asking_of(monitor, None).key == KEY


def test_authorities_are_read_where_a_page_is_at_https(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    plain = Monitor(scrape=("http://b:2",), scrape_ca_file=file)
    assert asking_of(plain, None).tls is None
    with pytest.raises(UsageError, match=r"monitor\.scrape_ca_file"):
        asking_of(Monitor(scrape=("https://b:2",), scrape_ca_file=file), None)
    tls = asking_of(Monitor(scrape=("https://b:2",)), None).tls
    assert tls
    assert tls.verify_mode is ssl.CERT_REQUIRED
