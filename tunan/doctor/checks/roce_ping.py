"""Whether the NPUs' ports reach one another."""

from tunan.ascend.probes.hccn import Ping, parse_ip, parse_ping
from tunan.ascend.probes.probe import Probe
from tunan.doctor.checks.roce_link import hccn_text
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject
from tunan.doctor.wording import counted


def look(subject: Subject) -> Answer | None:
    """Each device asks the next one of this machine; `npu-ping` goes to the other machines."""
    if not subject.wants_hardware or not subject.is_one_of_several or len(subject.devices) < 2:
        return None
    addresses = roce_addresses(subject)
    count = len(addresses)
    pairs = [(n, (n + 1) % count) for n in range(count) if addresses[(n + 1) % count]]
    told = {
        f"device {n} to {other}": ping(subject, n, addresses[other] or "") for n, other in pairs
    }
    return judged(told)


def judged(told: dict[str, Probe[Ping]]) -> Answer:
    """One answer out of pings by what they connect."""
    needed, fix = "every packet comes back", "hccn_tool -i N -ping -g address ADDRESS; the switch"
    known = {pair: probe.value for pair, probe in told.items() if probe.value}
    lost = [
        f"{pair}: {ping.received} of {ping.sent} came back"
        for pair, ping in known.items()
        if ping.received < ping.sent or not ping.sent
    ]
    if lost:
        none = any(not ping.received for ping in known.values())
        return Answer(False, "; ".join(lost), needed, fix, "error" if none else "warning")
    if not told:
        return Answer(None, "no port with an address to ping", needed, "hccn_tool -i 0 -ip -g")
    if silent := [(pair, probe.error) for pair, probe in told.items() if probe.value is None]:
        pair, error = silent[0]
        return Answer(None, f"{pair}: {error}", needed, fix)
    return Answer(True, counted(len(known), "pair"), needed)


def roce_addresses(subject: Subject) -> list[str | None]:
    """Of each device's port."""
    told = [parse_ip(hccn_text(subject, n, "-ip")).value for n in range(len(subject.devices))]
    return [pair[0] if pair else None for pair in told]


def ping(subject: Subject, number: int, address: str) -> Probe[Ping]:
    """`hccn_tool -i NUMBER -ping -g address ADDRESS`, three packets."""
    ran = subject.sight.run("hccn_tool", "-i", str(number), "-ping", "-g", "address", address)
    return parse_ping(ran.output or ran.error or "")


CHECK = Check("roce-ping", "error", look)
