"""Prints the tables of `npu-smi info`."""

from __future__ import annotations

from tests.ascend.fakebin.machine import (
    CLASSIC,
    NARROW_310,
    WIDE,
    FakeDie,
    FakeMachine,
)


def info(machine: FakeMachine) -> str:
    """`npu-smi info`."""
    if machine.layout == "name-cell":
        return _name_cells(machine)
    widths = {"wide": WIDE, "no-hbm": NARROW_310}.get(machine.layout, CLASSIC)
    thick, thin = _rule(widths, "="), "+" + "-" * (sum(widths) + 2) + "+"
    total = sum(widths) + 2
    head = f" npu-smi {machine.version}".ljust(total // 2) + f"Version: {machine.version}"
    second = {"dual": "Chip  Phy-ID", "wide": "Chip  Phy-ID", "no-hbm": "Chip  Device"}
    hbm = "" if machine.layout == "no-hbm" else "HBM-Usage(MB)"
    lines = [
        thin,
        f"|{head.ljust(total)}|",
        _rule(widths, "-"),
        _row(
            widths,
            " NPU   Name",
            " Health",
            _cells(widths[2], "Power(W)", "Temp(C)", "Hugepages-Usage(page)"),
        ),
        _row(
            widths,
            f" {second.get(machine.layout, 'Chip')}",
            " Bus-Id",
            _cells(widths[2], "AICore(%)", "Memory-Usage(MB)", hbm),
        ),
        thick,
    ]
    for position, die in enumerate(machine.dies):
        last_of_module = die is machine.dies[-1] or machine.dies[position + 1].npu != die.npu
        lines += [*_die(machine, widths, position, die), thick if last_of_module else thin]
    if machine.process_table:
        lines += _processes(machine, widths)
    return "\n".join(lines) + "\n"


def _die(machine: FakeMachine, widths: tuple[int, ...], position: int, die: FakeDie) -> list[str]:
    number = f" {die.chip}"
    if machine.layout in ("dual", "wide"):
        number += f"     {position}"
    elif machine.layout == "no-hbm":
        number += "       0"
    pages = f"{die.hugepages[0]:<5}/ {die.hugepages[1]}"
    beside = f"{die.ddr[0]:<5}/ {die.ddr[1]}"
    # As npu-smi does it: five places, then the slash, so that large numbers touch it.
    hbm = "" if machine.layout == "no-hbm" else f"{die.memory[0]:<5}/ {die.memory[1]}"
    return [
        _row(
            widths,
            f" {die.npu}     {die.name}",
            f" {die.health}",
            _cells(widths[2], die.power, die.temperature, pages),
        ),
        _row(widths, number, f" {die.bus}", _cells(widths[2], die.load, beside, hbm)),
    ]


def _processes(machine: FakeMachine, widths: tuple[int, ...]) -> list[str]:
    thick = _rule(widths, "=")
    total = sum(widths) + 2
    lines = [
        _rule(widths, "-"),
        f"| NPU     Chip{'':<{widths[0] - 13}}| Process id    | {'Process name':<25}"
        "| Process memory(MB)      |",
        thick,
    ]
    for npu in sorted({die.npu for die in machine.dies}):
        rows = [process for process in machine.processes if process.npu == npu]
        for process in rows:
            lines.append(
                f"| {npu:<8}{process.chip:<{widths[0] - 9}}| {process.pid:<14}"
                f"| {process.name:<25}| {process.memory:<24}|"
            )
        if not rows:
            lines.append(f"|{f' No running processes found in NPU {npu}'.ljust(total)}|")
        lines.append(thick)
    return lines


def _name_cells(machine: FakeMachine) -> str:
    lines = [f"| npu-smi {machine.version}   Version: {machine.version} |"]
    lines.append(
        "| NPU ID | Name             | Health        | Power(W) Temp(C) Hugepages-Usage(page) |"
    )
    lines.append(
        "| Chip   |                  | Bus-Id        | AICore(%) Memory-Usage(MB) HBM-Usage(MB) |"
    )
    for die in machine.dies:
        lines.append(
            f"| {die.npu} | {die.name} | {die.health} | {die.power} {die.temperature} 0 / 0 |"
        )
        memory = f"{die.memory[0]} / {die.memory[1]}"
        lines.append(f"| {die.chip} |  | {die.bus} | {die.load} 0 / 0 {memory} |")
    return "\n".join(lines) + "\n"


def _rule(widths: tuple[int, ...], stroke: str) -> str:
    return "+" + "+".join(stroke * width for width in widths) + "+"


def _row(widths: tuple[int, ...], *cells: str) -> str:
    return "|" + "|".join(cell.ljust(w) for cell, w in zip(cells, widths, strict=True)) + "|"


def _cells(width: int, *values: str) -> str:
    first, second = (12, 18) if width < 60 else (21, 24)
    return f" {values[0]:<{first}}{values[1]:<{second}}{values[2]}"
