"""What `npu-smi` and `hccn_tool` print for their other questions."""

from __future__ import annotations

from tests.ascend.fakebin.machine import FakeDie, FakeMachine
from tests.ascend.fakebin.tables import info


def npu_smi(machine: FakeMachine, arguments: list[str]) -> str:
    """The output of `npu-smi ARGUMENTS`."""
    options = dict(zip(arguments[1::2], arguments[2::2], strict=False))
    if arguments == ["info"]:
        return info(machine)
    if arguments == ["info", "-m"]:
        return _mapping(machine)
    kind = options.get("-t", "")
    if kind == "topo":
        return _topology(machine)
    number, chip = int(options.get("-i", "0")), int(options.get("-c", "0"))
    die = next((d for d in machine.dies if (d.npu, d.chip) == (number, chip)), None)
    if die is None:
        return "Invalid card id.\nError parameter of -i\n"
    return _of_die(machine, die, kind, "-c" in options)


def _of_die(machine: FakeMachine, die: FakeDie, kind: str, asked_for_one: bool) -> str:
    if kind == "board":
        return _fields(
            ("NPU ID", die.npu),
            ("Software Version", machine.version),
            ("Firmware Version", machine.firmware),
            ("Compatibility", machine.compatible),
            ("PCI Vendor ID", "0x19E5"),
            ("PCI Device ID", "0xD802"),
        )
    if kind == "health":
        return _fields(("Health", die.health), ("Error Code", die.codes or "NA"))
    if kind == "ecc":
        # Without -c: every die of the module, each with its number below.
        whole = [die] if asked_for_one else [d for d in machine.dies if d.npu == die.npu]
        head = _fields(("NPU ID", die.npu), ("Chip Count", len(whole)))
        return head + "\n".join(_ecc(machine, each) for each in whole)
    return f"the fake npu-smi does not know -t {kind}\n"


def _ecc(machine: FakeMachine, die: FakeDie) -> str:
    memory = "DDR" if machine.layout == "no-hbm" else "HBM"
    other = () if memory == "DDR" else (("DDR Single Bit Error Count", 0),)
    return _fields(
        *other,
        (f"{memory} Single Bit Error Count", die.single_bit),
        (f"{memory} Double Bit Error Count", die.double_bit),
        (f"{memory} Single Bit Isolated Pages Count", 0),
        (f"{memory} Double Bit Isolated Pages Count", die.double_bit),
        (f"{memory} Double Bit Next-Isolated Pages Count", 9),
        ("Chip ID", die.chip),
    )


def _fields(*pairs: tuple[str, object]) -> str:
    return "".join(f"\t{key:<31}: {value}\n" for key, value in pairs)


def _mapping(machine: FakeMachine) -> str:
    lines = [f"\t{'NPU ID':<31}{'Chip ID':<31}{'Chip Logic ID':<31}Chip Name"]
    for position, die in enumerate(machine.dies):
        lines.append(f"\t{die.npu:<31}{die.chip:<31}{position:<31}Ascend {die.name}")
        lines.append(f"\t{die.npu:<31}{die.chip + 1:<31}{'-':<31}Mcu")
    return "\n".join(lines) + "\n"


def _topology(machine: FakeMachine) -> str:
    numbers = range(len(machine.dies))
    lines = ["\t   " + "".join(f"NPU{n:<8}" for n in numbers) + "CPU Affinity"]
    for row in numbers:
        kinds = ["X" if row == column else "HCCS" for column in numbers]
        first = 24 * (row // 2)
        cells = "".join(f"{kind:<11}" for kind in kinds)
        lines.append(f"NPU{row}       {cells}{first}-{first + 23}")
    return "\n".join([*lines, "", "Legend:", "", "  HCCS = Connection traversing HCCS."]) + "\n"


def hccn_tool(machine: FakeMachine, arguments: list[str]) -> str:
    """The output of `hccn_tool ARGUMENTS`."""
    number = int(arguments[arguments.index("-i") + 1])
    options = set(arguments)
    if "-ip" in options:
        if number >= len(machine.addresses):
            return "Get ipconf failed, because no ip was preset there!\nCommand execute failed!\n"
        return f"ipaddr:{machine.addresses[number]}\nnetmask:255.255.0.0\n"
    if "-link" in options:
        return f"link status: {machine.link}\n"
    if "-net_health" in options:
        return f"net health status: {machine.net_health}\n"
    if "-tls" in options:
        switch = machine.tls[number] if number < len(machine.tls) else 0
        return f"dev_id:{number}, tls switch[{switch}](0:disable, 1:enable), tls preconfigured[1]\n"
    if "-mtu" in options:
        return f"mtu:{machine.mtu[number] if number < len(machine.mtu) else 1500}\n"
    if "-ping" in options:
        return _ping(machine, number, arguments[-1])
    return "Command execute failed!\n"


def _ping(machine: FakeMachine, number: int, address: str) -> str:
    back = 3 - machine.lost_packets
    lines = [f"device {number} PING {address}"]
    lines += [f"recv seq={n},time=0.0{n + 4}1000ms" for n in range(back)]
    lines.append(f"3 packets transmitted, {back} received, {100 - back * 100 / 3:.2f}% packet loss")
    return "\n".join(lines) + "\n"


def lscpu(machine: FakeMachine) -> str:
    """The output of `lscpu`."""
    return "".join(f"{key}:{'':<4}{value}\n" for key, value in machine.lscpu.items())
