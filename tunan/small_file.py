"""Files that a user names and that are small by nature: keys, certificates, settings."""

from pathlib import Path

from tunan.errors import UsageError

MAX_BYTES = 1 << 20


def read_small(path: Path, what: str) -> bytes:
    """The content of `path`, at most 1 MiB; `what` it should be, for the message.

    A pipe may be named too. A device that never ends is refused like a large file, since neither
    has a size that could be asked for. Raises `OSError` and `UsageError`.
    """
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise UsageError(f"{path}: larger than 1 MiB, so not {what}")
    return content
