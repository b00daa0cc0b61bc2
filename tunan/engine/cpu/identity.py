"""What packed weights were made from: changes with any change of the checkpoint."""

import hashlib
import json
from pathlib import Path

from tunan.checkpoint.fingerprint import fingerprint
from tunan.checkpoint.manifest import MANIFEST_FILE, Manifest


def checkpoint_identity(directory: Path) -> str:
    """sha256 (hex) that tells this checkpoint from every other.

    Of a converted one, over the hashes in its manifest; of a plain one, over names, sizes,
    headers and samples of its files and over their modification times. Raises OSError or
    TunanError if the directory cannot be read.
    """
    digest = hashlib.sha256()
    if (directory / MANIFEST_FILE).is_file():
        manifest = Manifest.read(directory)
        listed = [[item.file, item.bytes, item.sha256] for item in manifest.blocks]
        listed += [[item.file, item.bytes, item.sha256] for item in manifest.files]
        digest.update(json.dumps(listed).encode())
        return digest.hexdigest()
    weights = sorted(directory.glob("*.safetensors")) or sorted(directory.glob("*.bin"))
    digest.update(fingerprint(weights).encode())
    digest.update(json.dumps([path.stat().st_mtime_ns for path in weights]).encode())
    digest.update((directory / "config.json").read_bytes())
    return digest.hexdigest()
