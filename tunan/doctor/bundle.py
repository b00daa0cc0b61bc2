"""The file that carries a machine to somebody else: the checks' answers, and logs, masked."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

from tunan import __version__
from tunan.ascend.catalogue import profiles
from tunan.ascend.probes.sight import Sight, load_answers, recorded
from tunan.config import Deployment, deployment_from
from tunan.config.loading import without_unset
from tunan.doctor.examining import Examination
from tunan.doctor.masking import Mask
from tunan.doctor.subject import Asked, Subject, as_json
from tunan.errors import OutsideError, UsageError
from tunan.targets import TARGETS

FACTS = "facts.json"
REPORT = "report.txt"
FORMAT = 1
MOST_FACTS = 32 << 20  # bytes
MOST_LOGS = 8
MOST_LOG = 256 << 10  # bytes of each, from its end


def write_bundle(
    path: Path,
    subject: Subject,
    examination: Examination,
    state: Path | None,
    mask: Mask | None = None,
) -> None:
    """Writes `path` (.tar.gz) whole or not at all; logs from the folder `state`, if there is one.
    Several bundles with one `mask` stay comparable.

    Raises `UsageError` if it exists, `OutsideError` if it cannot be written.
    """
    refuse_existing(path)
    mask = mask or Mask(subject.sight.system("hostname"))
    facts = {
        "format": FORMAT,
        "tool": f"tunan {__version__}",
        "asked": mask.json(as_json(subject.asked)),
        "answers": mask.json(subject.sight.asked),
    }
    files = {
        FACTS: json.dumps(facts, ensure_ascii=False, indent=1),
        REPORT: mask.text(examination.text()) + "\n",
        **{f"logs/{name}": mask.text(text) for name, text in _logs(state).items()},
    }
    partial = path.with_name(f".{path.name}.partial")
    try:
        with tarfile.open(partial, "x:gz") as archive:
            for name, text in files.items():
                content = text.encode("utf-8", errors="replace")
                entry = tarfile.TarInfo(f"doctor/{name}")
                entry.size, entry.mode = len(content), 0o600
                archive.addfile(entry, io.BytesIO(content))
        partial.replace(path)
    except OSError as error:
        raise OutsideError(f"{path}: {error.strerror}; name a folder that can be written") from None
    finally:
        partial.unlink(missing_ok=True)


def refuse_existing(path: Path) -> None:
    """Raises `UsageError` if `path` is there: nothing is written over."""
    if path.exists():
        raise UsageError(f"{path}: exists already; name a new file")


def read_bundle(path: Path) -> tuple[Sight, Asked]:
    """The machine of a bundle and what it was asked for. Raises `UsageError`."""
    facts = load_answers(_facts_text(path), str(path))
    if facts.get("format") != FORMAT or not isinstance(facts.get("answers"), dict):
        raise UsageError(f"{path}: not a bundle of `tunan doctor --bundle`, or of a newer Tunan")
    return recorded(facts["answers"]), _asked(facts.get("asked"), str(path))


def _facts_text(path: Path) -> str:
    try:
        with tarfile.open(path, "r:gz") as archive:
            for entry in archive:
                # What comes before it has to be unpacked as well: a small file may never end.
                if entry.size > MOST_FACTS:
                    break
                if entry.name == f"doctor/{FACTS}" and entry.isreg():
                    file = archive.extractfile(entry)
                    if file is None:
                        break
                    return file.read().decode("utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; name a bundle") from None
    except (tarfile.TarError, EOFError, UnicodeDecodeError, ValueError) as error:
        raise UsageError(f"{path}: damaged, or not a bundle: {error}") from None
    raise UsageError(f"{path}: no {FACTS} in it, so not a bundle of `tunan doctor --bundle`")


def _asked(values: Any, origin: str) -> Asked:
    if not isinstance(values, dict):
        return Asked()
    target, profile = values.get("target"), values.get("profile")
    return Asked(
        target=target if target in TARGETS else "auto",
        deployment=_deployment(values.get("deployment"), origin),
        profile=profile if profile in list(profiles()) else None,
    )


def _deployment(values: Any, origin: str) -> Deployment | None:
    if not isinstance(values, dict) or not values:
        return None
    return deployment_from(without_unset(values), origin)


def _logs(state: Path | None) -> dict[str, str]:
    if state is None:
        return {}
    # Those of earlier runs too: an engine that was started again begins a new log.
    logs = [*state.glob("*/*.log"), *state.glob("*/*.log.[0-9]")]
    found = sorted(logs, key=lambda log: log.stat().st_mtime)[-MOST_LOGS:]
    texts: dict[str, str] = {}
    for log in found:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - MOST_LOG))
            texts[f"{log.parent.name}-{log.name}"] = file.read().decode("utf-8", errors="replace")
    return texts
