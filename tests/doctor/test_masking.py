"""What says whose machine it is does not leave it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunan.doctor.masking import Mask

PRIVATE = [
    ("ipaddr:10.3.44.17", "10.3.44.17"),
    ("peer 10.3.44.17:29501 refused", "10.3.44.17"),
    ("inet6 fe80::5054:ff:fe12:3456 scope link", "5054"),
    ("ether 52:54:00:ab:cd:ef", "52:54:00:ab:cd:ef"),
    ("\tSerial Number                  : 2102312PXQ10K3000019", "2102312PXQ10K3000019"),
    ("\tVDie ID                        : 0BA52C90 20E0521C 31DCC40A", "0BA52C90"),
    ("vendor serial number : A1B2C3D4E5F", "A1B2C3D4E5F"),
    ("Product Serial Num: 2102312PXQ10", "2102312PXQ10"),
    ("SN: 033EGS10N7000012", "033EGS10N7000012"),
    ("board S/N = 033EGS10N7000012", "033EGS10N7000012"),
    ('{"serial_number": "2102312PXQ10K3000019"}', "2102312PXQ10K3000019"),
    ('{"uuid": "7d44-12fe-9a"}', "7d44-12fe-9a"),
    ("Authorization: Bearer kJ8-aaaa.bbbb", "kJ8-aaaa"),
    ("api_key='sesame-open'", "sesame"),
    ('{"api-key": "sesame-open"}', "sesame"),
    ("using sk-abcdefghijklmnop0123", "abcdefghijklmnop"),
    ("MY_PASSWORD=hunter2hunter2", "hunter2"),
    ("Authorization: Basic c2VzYW1lOm9wZW4=", "c2VzYW1l"),
    ("non-default args: {'api_key': ['sesame', 'open-up'], 'port': 1}", "open-up"),
    ("Namespace(api_key=['sesame'], port=1)", "sesame"),
    ("vllm serve /m --api-key sesame --port 1", "sesame"),
    ("['vllm', 'serve', '/m', '--api-key', 'sesame']", "sesame"),
    ('{"password": "open sesame"}', "sesame"),
    (r'"{\"token\": \"sesame\"}"', "sesame"),
    ("AWS_SECRET_ACCESS_KEY=sesame", "sesame"),
    ("proxy http://me:sesame@proxy:3128", "sesame"),
    ("密码：sesame", "sesame"),
    ("ATLAS-17 rebooted", "ATLAS-17"),
    ("/home/zhangwei/models/r1: no such file", "zhangwei"),
    ("atlas-17 kernel: davinci 0 reset", "atlas-17"),
]
PLAIN = [
    "Firmware Version               : 7.8.0.6.201",
    "Version=23.0.0.1",
    "compatible_version_fw=[7.0.0.1,7.8.99.2]",
    "| 0                         | 0000:C1:00.0  | 0           0    / 0          3318 / 65536 |",
    "netmask:255.255.255.0",
    "listening on 127.0.0.1:8080 and [::1]:8080",
    "12:30:45 started",
    "atlas-170 is another machine",
    "INSN: 3 instructions",
    "token_count: 17, max tokens 4096",
    "--max-num-batched-tokens 4096 --api-keys-file keys.txt",
    "base information: [streamID:[3]]",
    "http://localhost:8080/v1",
]


@pytest.mark.parametrize(("text", "private"), PRIVATE)
def test_what_is_private_is_gone(text: str, private: str) -> None:
    assert private not in Mask("atlas-17").text(text)


@pytest.mark.parametrize("text", PLAIN)
def test_what_checks_need_stays(text: str) -> None:
    assert Mask("atlas-17").text(text) == text


def test_a_value_whose_key_says_that_it_is_secret_is_gone() -> None:
    masked = Mask().json({"api_key": "sesame", "api_keys_file": "keys.txt", "max_tokens": "9"})
    assert masked == {"api_key": "***", "api_keys_file": "keys.txt", "max_tokens": "9"}


def test_a_value_after_an_option_for_secrets_is_gone() -> None:
    arguments = ["--api-key", "sesame", "--seed", "1"]
    assert Mask().json(arguments) == ["--api-key", "***", "--seed", "1"]
    assert Mask().json({"api-key": ["sesame"]}) == {"api-key": "***"}


def test_several_machines_get_a_stand_in_each() -> None:
    masked = Mask("atlas-1", None, "atlas-17", "n1").text("atlas-17 to atlas-1, n1")
    assert masked == "host-2 to host-1, n1"


def test_equal_stays_equal_and_different_stays_different() -> None:
    first, second, third = Mask().text("10.0.0.1 10.0.0.2 10.0.0.1").split()
    assert first == third != second


@given(st.text(alphabet="0123456789.: abcdef\n|=/"))
def test_masking_what_is_masked_changes_nothing(text: str) -> None:
    mask = Mask()
    once = mask.text(text)
    assert mask.text(once) == once


@given(
    st.recursive(
        st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_json_stays_json(value: Any) -> None:
    json.dumps(Mask("host").json(value))
