"""What to do about a cause of death that is known."""

from tunan.diagnosis.knowledge import entry_of


def with_next_step(cause: str) -> str:
    """`cause` without its full stop, with what to do about it if that is known."""
    if not cause.endswith(".."):  # an ellipsis says that there is more
        cause = cause.removesuffix(".")
    entry = entry_of(cause)
    return f"{cause}; {entry.fix.en}" if entry else cause
