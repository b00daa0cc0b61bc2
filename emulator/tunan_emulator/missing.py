"""A libopapi.so that lacks operators, as an older CANN's would."""

import os
import shutil
import tempfile
from pathlib import Path

from tunan_emulator.settings_error import SettingsError

PREFIX = "tunan-emulator-"  # of temporary folders
_LIBRARY = "libopapi.so"


def libraries_without(operators: list[str], libraries: Path) -> Path:
    """A folder with the libraries in which the operators' symbols do not exist.

    It is `libraries` itself when nothing is to be missing; else a temporary folder with a copy of
    libopapi.so beside links to the rest, removed when this process, and what it becomes, has ended.
    """
    if not operators:
        return libraries
    patched = _without((libraries / _LIBRARY).read_bytes(), operators)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    for library in libraries.glob("*.so"):
        if library.name != _LIBRARY:
            (folder / library.name).symlink_to(library)
    (folder / _LIBRARY).write_bytes(patched)
    _remove_when_done(folder)
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


def _remove_when_done(folder: Path) -> None:
    """Leaves a process behind that waits for the end of this one and removes the folder.

    This process is about to become the emulated command, so nothing of it is there to do so. The
    pipe's other end goes with it and is closed when it ends, however that is.
    """
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os.close(reading)
        return
    os.setsid()  # a signal to the command's group is not for the one that waits
    if os.fork():
        os._exit(0)  # so that it is no child of the command
    os.close(writing)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # whoever reads the command's output does not wait for this process
        os.dup2(nowhere, stream)
    os.read(reading, 1)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)
