"""Writes the link stubs of CANN's libraries for the torch_npu that is installed.

`python stubs.py OUT_DIR` writes one C file a library, `OUT_DIR/<soname>.c`, for each shared
library that torch_npu's binaries need and this machine lacks. Each symbol that they import and
nobody provides is defined weakly there: what the emulator implements wins at link time, the rest
reports itself once when tracing and answers 0 ("success").
"""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

EMULATED = ("libascendcl.so", "libopapi.so", "libatb.so", "libhccl.so")
# Opened by name while running, for functions that the emulated ones have.
OPENED = ("libhcomm.so", "libnnopbase.so")
SYSTEM_FOLDERS = [
    Path(folder)
    for pattern in ("/lib/{}-linux-gnu", "/usr/lib/{}-linux-gnu")
    for machine in ("x86_64", "aarch64")
    if (folder := Path(pattern.format(machine))).is_dir()
] + [folder for folder in (Path("/lib64"), Path("/usr/lib64"), Path("/lib")) if folder.is_dir()]

HEADER = """\
/* Generated from the installed torch_npu: do not edit. */
int tunan_unimplemented(const char* symbol) __attribute__((weak));
#define STUB(NUMBER, SYMBOL) \\
    int stub_##NUMBER(void) __asm__(SYMBOL) __attribute__((weak)); \\
    int stub_##NUMBER(void) { return tunan_unimplemented ? tunan_unimplemented(SYMBOL) : 0; }
"""


def package_folder(name: str) -> Path | None:
    """Where an installed package lies, without importing it (torch_npu cannot be imported yet)."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None


def dynamic_symbols(library: Path, flag: str) -> Iterator[tuple[str, str]]:
    """(type letter, name) of the dynamic symbols that `nm -D` lists with `flag`."""
    listing = subprocess.run(["nm", "-D", flag, library], capture_output=True, text=True)
    for line in listing.stdout.splitlines():
        *_, letter, name = line.split()
        yield letter, name.split("@")[0]


def needed_libraries(library: Path) -> list[str]:
    """The sonames in the library's NEEDED entries."""
    listing = subprocess.run(["readelf", "-d", library], capture_output=True, text=True)
    return re.findall(r"\(NEEDED\).*\[(.*)\]", listing.stdout)


def missing(binaries: list[Path], torch_libraries: list[Path]) -> tuple[set[str], set[str]]:
    """(sonames nobody has, symbols nobody has) of torch_npu's binaries on this machine."""
    known = {path.name: path for path in [*binaries, *torch_libraries]}
    absent: set[str] = set()
    for binary in binaries:
        for soname in needed_libraries(binary):
            on_system = (folder / soname for folder in SYSTEM_FOLDERS)
            found = known.get(soname) or next((p for p in on_system if p.exists()), None)
            if found is None:
                absent.add(soname)
            else:
                known[soname] = found
    provided = {
        name for path in known.values() for _, name in dynamic_symbols(path, "--defined-only")
    }
    wanted = {
        name
        for binary in binaries
        for letter, name in dynamic_symbols(binary, "--undefined-only")
        if letter == "U" and not name.startswith(("Py", "_Py"))
    }
    return absent, wanted - provided


def soname_of(symbol: str) -> str:
    """The library of CANN that a symbol belongs to; which one hardly matters to the loader."""
    if "3atb" in symbol:
        return "libatb.so"
    if symbol.startswith("Hccl"):
        return "libhccl.so"
    if symbol.startswith(("_ZN2ge", "_ZNK2ge")):
        return "libge_runner.so"
    if symbol.startswith("acltdt"):
        return "libacl_tdt_channel.so"
    return "libascendcl.so"


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    npu, torch = package_folder("torch_npu"), package_folder("torch")
    if npu is None or torch is None:
        sys.exit("stubs.py: torch and torch_npu must be installed; the stubs are made from them")
    binaries = [
        *npu.glob("lib/*.so"),
        *npu.glob("_C*.so"),
        *npu.glob("dynamo/torchair/core/*.so"),
    ]
    sonames, symbols = missing(binaries, list(torch.glob("lib/*.so*")))
    stubs: dict[str, list[str]] = {soname: [] for soname in {*sonames, *EMULATED, *OPENED}}
    for symbol in sorted(symbols):
        stubs.setdefault(soname_of(symbol), []).append(symbol)
    for soname, names in stubs.items():
        lines = [f'STUB({number}, "{name}")' for number, name in enumerate(names)]
        text = "\n".join([HEADER, *lines, ""])
        path = out / f"{soname}.c"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    (out / "libraries.txt").write_text("\n".join(sorted(stubs)))


if __name__ == "__main__":
    main()
