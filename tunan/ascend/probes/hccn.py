"""`hccn_tool`: the network port of an NPU."""

import re
from dataclasses import dataclass
from typing import Any

from tunan.ascend.probes.probe import Probe

_FAILED = ("failed", "error", "invalid", "not support")
HEALTHY = "success"


@dataclass(frozen=True)
class Ping:
    """`-ping -g address A`."""

    sent: int
    received: int


def parse_ip(text: str) -> Probe[tuple[str, str]]:
    """`-ip -g`: address and netmask."""
    address = re.search(r"ipaddr:\s*([0-9a-fA-F.:]+)", text)
    mask = re.search(r"netmask:\s*([0-9a-fA-F.:]+)", text)
    if address and mask:
        return Probe((address[1], mask[1]), "hccn_tool -ip")
    return _failed("-ip", text)


def parse_link(text: str) -> Probe[bool]:
    """`-link -g`: whether the port is up."""
    match = re.search(r"link status:\s*(UP|DOWN)", text, re.IGNORECASE)
    if match:
        return Probe(match[1].upper() == "UP", "hccn_tool -link")
    return _failed("-link", text)


def parse_net_health(text: str) -> Probe[str]:
    """`-net_health -g`: `Success`, or what it tells instead (`Socket fail`, `Unreachable`...)."""
    match = re.search(r"net health status:\s*(\S[^\n]*)", text, re.IGNORECASE)
    return (
        Probe(match[1].strip(), "hccn_tool -net_health") if match else _failed("-net_health", text)
    )


def parse_detect_address(text: str) -> Probe[str]:
    """`-netdetect -g`: the address whose answer net_health waits for."""
    match = re.search(r"netdetect address:\s*([0-9a-fA-F.:]+)", text, re.IGNORECASE)
    return Probe(match[1], "hccn_tool -netdetect") if match else _failed("-netdetect", text)


def parse_gateway(text: str) -> Probe[str]:
    """`-gateway -g`."""
    match = re.search(r"default gateway:\s*([0-9a-fA-F.:]+)", text, re.IGNORECASE)
    return Probe(match[1], "hccn_tool -gateway") if match else _failed("-gateway", text)


def parse_tls(text: str) -> Probe[bool]:
    """`-tls -g`: whether the switch is on. It has to be the same on all NPUs that talk."""
    match = re.search(r"tls switch\[([01])\]", text, re.IGNORECASE)
    return Probe(match[1] == "1", "hccn_tool -tls") if match else _failed("-tls", text)


def parse_mtu(text: str) -> Probe[int]:
    """`-mtu -g`: bytes. Releases print `mtu:1500` and `mtu 1500`."""
    match = re.search(r"\bmtu\b\s*[:=]?\s*([0-9]{2,6})\b", text, re.IGNORECASE)
    return Probe(int(match[1]), "hccn_tool -mtu") if match else _failed("-mtu", text)


def parse_speed(text: str) -> Probe[int]:
    """`-status -g`: Mb/s."""
    match = re.search(r"Speed:\s*([0-9]{1,9})\s*Mb/s", text, re.IGNORECASE)
    return Probe(int(match[1]), "hccn_tool -status") if match else _failed("-status", text)


def parse_ping(text: str) -> Probe[Ping]:
    """`-ping -g address A`: how many packets went out and came back."""
    match = re.search(r"([0-9]{1,9}) packets transmitted,\s*([0-9]{1,9}) received", text)
    if match:
        return Probe(Ping(int(match[1]), int(match[2])), "hccn_tool -ping")
    return _failed("-ping", text)


def parse_flaps(text: str) -> Probe[int]:
    """`-link_stat -g`: how often the link is recorded to have gone down."""
    if "link change records" not in text:
        return _failed("-link_stat", text)
    return Probe(len(re.findall(r"\bLINK DOWN\b", text)), "hccn_tool -link_stat")


def _failed(option: str, text: str) -> Probe[Any]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = next((line for line in lines if any(f in line.lower() for f in _FAILED)), None)
    said = told or (lines[0] if lines else "")
    return Probe.failed(f"hccn_tool {option}", f"it printed `{said[:80]}`" if said else "no output")
