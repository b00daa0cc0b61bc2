"""What the checkpoint's config.json rules out on the target."""

import json
import tempfile
from pathlib import Path

from tunan.config import Deployment
from tunan.doctor.finding import Answer, Check
from tunan.doctor.subject import Subject
from tunan.errors import UsageError
from tunan.supervisor.feasibility import refuse_impossible

_MODELSLIM = "quant_model_description.json"


def look(subject: Subject) -> Answer | None:
    """The same judgement as `tunan serve`'s, from a file that a bundle carries."""
    deployment = subject.deployment
    if deployment is None or not subject.replicas_here:
        return None
    needed = f"a model and a split that {subject.target} can run"
    path = deployment.model.path
    text = subject.sight.read(f"{path}/config.json")
    if text is None:
        return Answer(None, f"no {path}/config.json", needed, "tunan convert")
    try:
        architecture = json.loads(text)["architectures"][0]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return Answer(False, f"{path}/config.json is no model's", needed, "copy it again")
    error = _refused(subject, deployment, text)
    if error:
        what, _, fix = error.partition("; ")
        return Answer(False, what, needed, fix or None)
    return Answer(True, str(architecture), needed)


def _refused(subject: Subject, deployment: Deployment, config: str) -> str | None:
    """What `tunan serve` would say; from a copy, as the checkpoint may be another machine's."""
    path = deployment.model.path
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        (copy / "config.json").write_text(config, encoding="utf-8")
        if subject.sight.exists(f"{path}/{_MODELSLIM}"):
            (copy / _MODELSLIM).touch()
        model = deployment.model.model_copy(update={"path": copy})
        try:
            refuse_impossible(deployment.model_copy(update={"model": model}), subject.target)
        except UsageError as error:
            return str(error).replace(name, str(path))
    return None


CHECK = Check("model-config", "error", look)
