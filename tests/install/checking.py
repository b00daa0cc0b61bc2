"""The real checkers: shellcheck, Kubernetes' schemas, systemd."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

KUBERNETES = "1.32"
_SCHEMA = json.loads(Path(__file__).with_name("leaderworkerset.schema.json").read_text())


def shellcheck(text: str, *options: str) -> str:
    """What shellcheck says of a bash script; empty if nothing."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    program = shutil.which("shellcheck", path=path)
    assert program, "no shellcheck: install requirements/dev.lock"
    done = subprocess.run(
        [program, "--shell=bash", *options, "-"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def manifests(text: str) -> list[dict[str, Any]]:
    """The documents, each checked against its schema: an unknown field is an error, too."""
    documents = list(yaml.safe_load_all(text))
    for document in documents:
        if document["kind"] == "LeaderWorkerSet":
            jsonschema.validate(document, _SCHEMA)
            for template in templates_of(document):
                pod = {"apiVersion": "v1", "kind": "PodTemplate", "template": template}
                kubernetes_validate.validate(pod, KUBERNETES, strict=True)
        else:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
    return documents


def templates_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod templates of a Deployment or of a LeaderWorkerSet, the leader's first."""
    spec = document["spec"]
    if document["kind"] == "Deployment":
        return [spec["template"]]
    both = spec["leaderWorkerTemplate"]
    return [both["leaderTemplate"], both["workerTemplate"]]
