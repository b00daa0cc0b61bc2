"""One way to tell the user something on stderr that is not an error."""

import sys


def warn(message: str) -> None:
    """Prints one warning line on stderr."""
    print(f"tunan: warning: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201
