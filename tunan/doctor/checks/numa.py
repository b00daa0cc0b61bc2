"""NUMA nodes, and which NPUs are near which."""

from tunan.ascend.probes.host import look_at_nodes, node_of_bus
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject
from tunan.doctor.wording import counted, spans


def look(subject: Subject) -> Answer | None:
    """vllm-ascend binds a rank's threads to the CPUs near its NPU, if these are known."""
    nodes = look_at_nodes(subject.sight)
    if not nodes:
        return Answer(None, "/sys tells no NUMA nodes", "the nodes of the CPUs", "numactl -H")
    found = counted(len(nodes), "node")
    if not subject.wants_hardware or not subject.devices:
        return Answer(True, found, "any number")
    near: dict[int, list[int]] = {}
    lost: list[int] = []
    for device in subject.devices:
        node = node_of_bus(subject.sight, device.bus) if device.bus else None
        lost += [] if node is not None else [device.npu]
        if node is not None:
            near.setdefault(node, []).append(device.npu)
    where = "; ".join(f"node {n}: NPU {spans(near[n])}" for n in sorted(near))
    needed = "every NPU on a known node"
    if lost:
        return Answer(None, f"{found}; no node told for NPU {spans(lost)}", needed,
                      "update the BIOS, or bind by hand: npu-smi info -t topo")  # fmt: skip
    return Answer(True, f"{found}; {where}", needed)


CHECK = Check("numa", "note", look)
