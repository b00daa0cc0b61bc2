"""Plain tables on standard output."""

from collections.abc import Sequence


def render(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as their content, two spaces apart, the header underlined."""
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in cells]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)
