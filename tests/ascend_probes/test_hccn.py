"""The outputs of hccn_tool."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ascend.fakebin.answers import hccn_tool
from tests.ascend.fakebin.machine import a2
from tunan.ascend.probes import hccn


def ask(machine: Any, *options: str) -> str:
    return hccn_tool(machine, ["-i", "0", *options, "-g"])


def test_an_address_is_read_with_its_mask() -> None:
    machine = a2(1, addresses=("198.51.100.7",))
    assert hccn.parse_ip(ask(machine, "-ip")).value == ("198.51.100.7", "255.255.0.0")


def test_a_port_without_an_address_says_so() -> None:
    probe = hccn.parse_ip(ask(a2(1), "-ip"))
    assert probe.value is None
    assert "no ip was preset" in (probe.error or "")


@pytest.mark.parametrize(("printed", "up"), [("UP", True), ("DOWN", False)])
def test_a_link_is_up_or_down(printed: str, up: bool) -> None:
    assert hccn.parse_link(ask(a2(1, link=printed), "-link")).value is up


@pytest.mark.parametrize("told", ["Success", "Socket fail", "Unreachable"])
def test_net_health_is_what_the_tool_calls_it(told: str) -> None:
    assert hccn.parse_net_health(ask(a2(1, net_health=told), "-net_health")).value == told


@pytest.mark.parametrize("switch", [0, 1])
def test_the_tls_switch_is_read_and_not_what_follows_it(switch: int) -> None:
    assert hccn.parse_tls(ask(a2(1, tls=(switch,)), "-tls")).value is bool(switch)


def test_a_ping_counts_what_came_back() -> None:
    text = hccn_tool(a2(1, lost_packets=1), ["-i", "0", "-ping", "-g", "address", "198.51.100.8"])
    assert hccn.parse_ping(text).value == hccn.Ping(3, 2)


@pytest.mark.parametrize("printed", ["mtu:4200", "mtu 4200", "MTU: 4200\n"])
def test_the_mtu_is_read_however_it_is_printed(printed: str) -> None:
    assert hccn.parse_mtu(printed).value == 4200


def test_an_mtu_that_is_not_told_is_unknown() -> None:
    assert hccn.parse_mtu("Command execute failed!\n").value is None


def test_a_speed_is_in_megabits() -> None:
    assert hccn.parse_speed("Settings for eth0:\n\tSpeed: 200000Mb/s\n").value == 200000
    assert hccn.parse_speed("\tSpeed: Unknown!\n").value is None


def test_links_that_went_down_are_counted() -> None:
    text = "[devid 0]link change records :\n[devid 0] LINK DOWN\n[devid 0] LINK UP\n"
    assert hccn.parse_flaps(text).value == 1


PARSERS: list[Callable[[str], Any]] = [
    hccn.parse_ip, hccn.parse_link, hccn.parse_net_health, hccn.parse_detect_address,
    hccn.parse_gateway, hccn.parse_tls, hccn.parse_speed, hccn.parse_ping, hccn.parse_flaps,
    hccn.parse_mtu,
]  # fmt: skip


@pytest.mark.parametrize("parse", PARSERS)
@given(text=st.text())
def test_any_text_gives_a_result_or_one_line(parse: Callable[[str], Any], text: str) -> None:
    probe = parse(text)
    assert (probe.value is None) == (probe.error is not None)
    assert "\n" not in (probe.error or "")
