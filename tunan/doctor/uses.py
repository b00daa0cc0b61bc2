"""What a machine can be used for, whether or not it has NPUs."""

from tunan.ascend.catalogue import models
from tunan.doctor.fit import smallest_degree
from tunan.doctor.subject import Subject

_UTILIZATION = 0.9


def uses(subject: Subject) -> tuple[str, ...]:
    """One line a use."""
    return (*_serving(subject), *_without_npus(subject))


def _serving(subject: Subject) -> list[str]:
    sizes = [d.memory_total_mb for d in subject.devices if d.memory_total_mb]
    if sizes and subject.chip and subject.chip.is_served:
        room = min(sizes) * (1 << 20) * _UTILIZATION
        of = f"on {len(sizes)} x {subject.chip.name}"
        bf16 = "bfloat16" if subject.chip.bf16.value else "float16"
        types = {bf16: "bf16_bytes"}
        if subject.chip.target != "ascend310p":
            types["int8 (w8a8)"] = "int8_bytes"
        return [_line(f"serve {name} {of}", attribute, len(sizes), room, subject)
                for name, attribute in types.items()]  # fmt: skip
    memory = subject.memory.value
    if memory is None:
        return []
    room = (memory.available or memory.total) * _UTILIZATION
    return [
        _line(f"serve {name} on the CPU", attribute, 1, room, subject)
        for name, attribute in (("bfloat16", "bf16_bytes"), ("int8 (w8a8)", "int8_bytes"))
    ]


def _line(what: str, attribute: str, devices: int, room: float, subject: Subject) -> str:
    fitting: list[str] = []
    for model in models():
        if subject.family == "ascend310p" and model.latent_attention:
            continue
        degree = smallest_degree(model, getattr(model, attribute), devices, room)
        if degree is not None:
            fitting.append(model.name + (f" (tensor {degree})" if degree > 1 else ""))
    return f"{what}: {', '.join(fitting[-4:]) or 'none of the known models'}"


def _without_npus(subject: Subject) -> list[str]:
    if subject.devices:
        return []
    found = [
        "convert, quantise and verify checkpoints for any target (tunan convert)",
        "audit a model's operators (tunan ops audit), print a server's commands (--print-command)",
    ]
    if subject.sight.system("machine") in ("x86_64", "aarch64"):
        found.append("run the Ascend path on emulated devices: whether it is right, not how fast")
    return found
