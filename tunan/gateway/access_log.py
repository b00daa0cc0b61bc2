"""One JSON line a request, without prompts, keys, queries and headers."""

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from tunan.errors import UsageError


class AccessLog:
    """Appends to a file, or to nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: TextIO | None = None

    def __enter__(self) -> Self:
        """Raises `UsageError` if the file cannot be written."""
        if self._path is not None:
            try:
                self._path.touch(mode=0o600)
                self._file = self._path.open("a", encoding="utf-8", buffering=1)
            except OSError as error:
                raise UsageError(
                    f"gateway.access_log: cannot write {self._path}: {error.strerror}"
                ) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, **values: object) -> None:
        """One line; `values` are the caller's to choose, and none of them may be secret."""
        if self._file is not None:
            line = json.dumps({"time": round(time.time(), 3), **values}, ensure_ascii=True)
            self._file.write(line + "\n")
