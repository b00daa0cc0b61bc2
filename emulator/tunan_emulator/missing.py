"""A libopapi.so that lacks operators, as an older CANN's would."""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from tunan_emulator.settings_error import SettingsError

_LIBRARY = "libopapi.so"


def libraries_without(operators: list[str], libraries: Path) -> Path:
    """A folder with the libraries in which the operators' symbols do not exist.

    It is `libraries` itself when nothing is to be missing; else a copy of libopapi.so beside links
    to the rest, kept in the user's cache under a name that its content decides.
    """
    if not operators:
        return libraries
    stamp = f"{(libraries / _LIBRARY).stat().st_mtime_ns}:{','.join(operators)}"
    folder = _cache() / hashlib.sha256(f"{libraries}:{stamp}".encode()).hexdigest()[:16]
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=folder.parent))
        for library in libraries.glob("*.so"):
            if library.name != _LIBRARY:
                (unfinished / library.name).symlink_to(library)
        (unfinished / _LIBRARY).write_bytes(
            _without((libraries / _LIBRARY).read_bytes(), operators)
        )
        try:
            unfinished.rename(folder)
        except OSError:  # another run made it meanwhile
            shutil.rmtree(unfinished)
    return folder


def _without(binary: bytes, operators: list[str]) -> bytes:
    """Misspells the names in the symbol table: whoever looks one up finds nothing."""
    for operator in operators:
        for suffix in ("", "GetWorkspaceSize"):
            name = f"\0{operator}{suffix}\0".encode()
            if name not in binary:
                raise SettingsError(f"fault missing: the emulator has no operator {operator!r}")
            binary = binary.replace(name, name.replace(b"\0acl", b"\0???"))
    return binary


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "tunan" / "emulator"
