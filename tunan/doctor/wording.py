"""Numbers in the texts of the checks."""

from collections.abc import Iterable, Mapping


def counted(number: int, what: str) -> str:
    """`1 check`, `2 checks`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def spans(numbers: Iterable[int]) -> str:
    """`0-3, 6` of 0, 1, 2, 3, 6; each once, in order."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    # Two neighbours are no span: `0, 1`.
    return ", ".join(
        str(first) if first == last else f"{first}{', ' if last == first + 1 else '-'}{last}"
        for first, last in found
    )


def devices(numbers: Iterable[int]) -> str:
    """`device 3`, `devices 0-7`."""
    found = set(numbers)
    return f"device{'s' if len(found) > 1 else ''} {spans(found)}"


def by_value(told: Mapping[int, str]) -> str:
    """What each device tells, those that tell the same together: `devices 0, 1: A; device 2: B`."""
    values: dict[str, list[int]] = {}
    for number, value in told.items():
        values.setdefault(value, []).append(number)
    return "; ".join(f"{devices(numbers)}: {value}" for value, numbers in values.items())
