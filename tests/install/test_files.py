"""The written files, each held by the program that will read it."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.install.checking import manifests, shellcheck, templates_of
from tunan.cli.main import build_parser
from tunan.config import Deployment, deployment_from
from tunan.errors import OutsideError, UsageError
from tunan.install.facts import DATA, packages
from tunan.install.files import files_of, write_files
from tunan.install.plan import Plan
from tunan.install.render import script

A2 = Plan(target="ascend910b3", system="ubuntu")
A3 = Plan(target="ascend910c", system="openeuler", machine="x86_64", upgrade=True)
INFERENCE = Plan(target="ascend310p", system="openeuler")
CPU = Plan(target="cpu", system="debian")
by_plan = pytest.mark.parametrize("plan", [A2, A3, INFERENCE, CPU], ids=["A2", "A3", "310P", "cpu"])


def deployment(**values: Any) -> Deployment:
    return deployment_from({"model": {"path": "/models/r1"}, **values}, "test")


@by_plan
@pytest.mark.parametrize("system", packages().systems)
@pytest.mark.parametrize("wheels", [None, "empty", "filled"])
def test_shellcheck_accepts_every_script(
    plan: Plan, system: str, wheels: str | None, tmp_path: Path
) -> None:
    if wheels == "filled":
        (tmp_path / ".filled-by-tunan").touch()
    given = replace(plan, system=system, wheels=tmp_path if wheels else None)
    assert shellcheck(script(given)) == ""


def test_shellcheck_would_say_what_is_wrong() -> None:
    assert "SC2086" in shellcheck("#!/bin/bash\necho $1\n")


@by_plan
def test_shellcheck_accepts_the_environment_and_what_runs_in_it(plan: Plan) -> None:
    files = files_of(plan)
    assert shellcheck(files["env.sh"]) == ""
    assert shellcheck(files["with-env"]) == ""


def test_every_step_begins_with_its_title() -> None:
    for file in (DATA / "templates" / "steps").glob("*.sh"):
        assert re.match(r"# [A-Za-z].*\n", file.read_text(encoding="utf-8")), file.name


@by_plan
def test_the_environment_is_that_of_the_vendor_and_of_the_prefix(
    plan: Plan, tmp_path: Path
) -> None:
    """The vendor's scripts read variables that are not set, and end with what fails."""
    vendor = tmp_path / "set_env.sh"
    vendor.write_text('export FROM_VENDOR="$NOT_SET+1"\nfalse\n')
    files = files_of(replace(plan, prefix=tmp_path))
    text = re.sub(r"/usr/local/Ascend\S+", str(vendor), files["env.sh"])
    (tmp_path / "env.sh").write_text(text)
    program = tmp_path / "with-env"
    program.write_text(files["with-env"])
    done = subprocess.run(
        ["bash", str(program), "bash", "-c", 'echo "${FROM_VENDOR:-none} $PATH"'],
        capture_output=True,
        text=True,
        check=True,
    )
    found, path = done.stdout.split()
    assert found == ("none" if plan.is_cpu else "+1")
    assert path.startswith(f"{tmp_path}/venv/bin:")


@pytest.mark.parametrize(
    ("there", "sourced"),
    [(["cann"], "cann"), (["ascend-toolkit"], "ascend-toolkit"),
     (["ascend-toolkit", "cann"], "cann")],
)  # fmt: skip
def test_the_environment_is_that_of_the_toolkit_that_is_there(
    there: list[str], sourced: str, tmp_path: Path
) -> None:
    for folder in (*there, "nnal/atb"):
        script = tmp_path / folder / "set_env.sh"
        script.parent.mkdir(parents=True)
        script.write_text(f"echo {folder}\n")
    text = files_of(A2)["env.sh"].replace("/usr/local/Ascend", str(tmp_path))
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr) == ([sourced, "nnal/atb"], "")


@by_plan
def test_systemd_accepts_the_units(plan: Plan, tmp_path: Path) -> None:
    """Where there is no systemd its sections and keys are compared only."""
    prefix = tmp_path / "tunan"
    files = files_of(replace(plan, prefix=prefix))
    program = prefix / "with-env"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    if not plan.is_cpu:
        files = {**files, **files_of(replace(plan, prefix=prefix), deployment(**COPIES))}
    units = [name for name in files if name.endswith(".service")]
    assert len(units) == (2 if plan.is_cpu else 3)
    for name in units:
        unit = tmp_path / Path(name).name
        unit.write_text(files[name])
        assert re.findall(r"(?m)^\[(\w+)\]$", files[name]) == ["Unit", "Service", "Install"]
        for line in files[name].splitlines():
            assert re.fullmatch(r"|#.*|\[\w+\]|[A-Z]\w+=.+", line), line
        if shutil.which("systemd-analyze"):
            done = subprocess.run(
                ["systemd-analyze", "verify", "--man=no", str(unit)],
                capture_output=True,
                text=True,
                check=False,
            )
            ours = [line for line in done.stderr.splitlines() if str(unit) in line]
            assert (done.returncode, ours) == (0, [])


@by_plan
def test_the_units_commands_are_ones_that_tunan_takes(plan: Plan) -> None:
    for name, text in files_of(plan).items():
        for line in re.findall(r"(?m)^ExecStart=\S+ \S+/tunan (.*)$", text):
            assert build_parser().parse_args(shlex.split(line)), name


COPIES: dict[str, Any] = {"name": "r1", "parallel": {"tensor": 4, "data": 4}}


@pytest.mark.parametrize(
    "given",
    [COPIES, {"nodes": ["10.0.0.1", "10.0.0.2"], "parallel": {"tensor": 8, "pipeline": 2}}],
    ids=["copies", "machines"],
)
def test_what_serve_does_not_start_has_units_of_its_own(
    given: dict[str, Any], tmp_path: Path
) -> None:
    """The engine's unit prints its script and becomes it; here it is only printed."""
    files = files_of(replace(A3, prefix=tmp_path), deployment(**given))
    front, engine = (files[f"systemd/tunan-{name}.service"] for name in ("serve", "engine"))
    assert "Wants=network-online.target tunan-engine.service\n" in front
    (line,) = re.findall(r"(?m)^ExecStart=\S+ \S+/tunan (.*)$", front)
    arguments = build_parser().parse_args(shlex.split(line))
    assert line.startswith("gateway ")
    (start,) = re.findall(r"(?m)^ExecStart=(.*)$", engine)
    _, *shell = shlex.split(start.replace("$$", "$"))
    port = re.search(r"--port (\d+)", shell[-1])
    assert port is not None
    assert arguments.replica == [f"http://127.0.0.1:{port[1]}"]
    text = shell[-1].replace(f"{tmp_path}/venv/bin/tunan", "tunan")
    assert 'exec /bin/bash -c "$script"' in text
    text = text.replace("exec /bin/bash -c", "printf %s")
    (tmp_path / "deploy.yaml").write_text(deployment(**given).model_dump_json(exclude_unset=True))
    done = subprocess.run(
        [*shell[:-1], text],
        env=os.environ
        | {"TUNAN_NODE": "0", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"--port={port[1]}" in done.stdout
    assert "--host=127.0.0.1" in done.stdout
    assert shellcheck(done.stdout, "--exclude=SC1091") == ""
    assert "RestartPreventExitStatus=2\n" in engine


def test_one_machine_with_copies_has_the_front_door_before_the_engine() -> None:
    text = files_of(A3, deployment(**COPIES))["kubernetes/deployment.yaml"]
    config, _, workload = manifests(text)
    (pod,) = templates_of(workload)
    front, engine = pod["spec"]["containers"]
    inside = deployment_from(yaml.safe_load(config["data"]["deploy.yaml"]), "ConfigMap")
    assert f"--replica=http://127.0.0.1:{inside.gateway.port}" in front["args"]
    assert front["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert engine["resources"]["limits"] == {"huawei.com/Ascend910": "16"}
    assert "--print-command" in engine["args"][-1]
    assert shellcheck(engine["args"][-1], "--exclude=SC2154") == ""


@by_plan
def test_a_unit_waits_for_the_drain(plan: Plan) -> None:
    files = files_of(plan, deployment(gateway={"shutdown_timeout_s": 200}))
    assert "TimeoutStopSec=230\n" in files["systemd/tunan-serve.service"]
    (pod,) = templates_of(manifests(files["kubernetes/deployment.yaml"])[-1])
    assert pod["spec"]["terminationGracePeriodSeconds"] == 230


@by_plan
def test_kubernetes_accepts_the_manifests_of_one_machine(plan: Plan) -> None:
    text = files_of(plan)["kubernetes/deployment.yaml"]
    config, service, workload = manifests(text)
    (pod,) = templates_of(workload)
    (container,) = pod["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert build_parser().parse_args(container["args"][1:])
    limits = container["resources"].get("limits", {})
    assert (
        limits
        == {
            "cpu": {},
            "ascend910b3": {"huawei.com/Ascend910": "8"},
            "ascend910c": {"huawei.com/Ascend910": "16"},
            "ascend310p": {"huawei.com/Ascend310P": "2"},
        }[plan.target]
    )
    assert deployment_from(yaml.safe_load(config["data"]["deploy.yaml"]), "ConfigMap")
    memory = [v for v in pod["spec"]["volumes"] if v.get("emptyDir", {}).get("medium")]
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    assert mounts[memory[0]["name"]] == "/dev/shm"


def test_a_manifest_with_an_unknown_field_would_be_refused() -> None:
    text = files_of(A2)["kubernetes/deployment.yaml"]
    with pytest.raises(kubernetes_validate.ValidationError):
        manifests(text.replace("readinessProbe", "readynessProbe"))
    text = files_of(A2)["kubernetes/leaderworkerset.yaml"]
    with pytest.raises(kubernetes_validate.ValidationError):
        manifests(text.replace("readinessProbe", "readynessProbe"))
    with pytest.raises(jsonschema.ValidationError):
        manifests(text.replace("startupPolicy", "startPolicy"))


@pytest.mark.parametrize("plan", [A2, A3], ids=["A2", "A3"])
def test_several_machines_are_a_leader_and_workers(plan: Plan) -> None:
    nodes = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]
    given = deployment(name="R1.w8a8", nodes=nodes, parallel={"tensor": 8, "pipeline": 4})
    files = files_of(plan, given)
    assert "kubernetes/deployment.yaml" not in files
    config, _, workload = manifests(files["kubernetes/leaderworkerset.yaml"])
    assert workload["spec"]["leaderWorkerTemplate"]["size"] == 4
    inside = deployment_from(yaml.safe_load(config["data"]["deploy.yaml"]), "ConfigMap")
    # The names that the controller gives the pods of group 0.
    assert inside.nodes == (
        "r1-w8a8-0.r1-w8a8",
        *(f"r1-w8a8-0-{index}.r1-w8a8" for index in (1, 2, 3)),
    )
    leader, worker = templates_of(workload)
    front, head = leader["spec"]["containers"]
    (other,) = worker["spec"]["containers"]
    assert front["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert f"--replica=http://127.0.0.1:{inside.gateway.port}" in front["args"]
    assert build_parser().parse_args(front["args"][1:])
    assert head == other
    assert head["resources"]["limits"] == {"huawei.com/Ascend910": "8"}
    assert shellcheck(head["args"][-1], "--exclude=SC2154") == ""


def test_a_pod_prints_its_own_machines_script_and_becomes_it(tmp_path: Path) -> None:
    """Up to CANN, which is missing here."""
    config, _, workload = manifests(files_of(A2)["kubernetes/leaderworkerset.yaml"])
    file, start = tmp_path / "deploy.yaml", tmp_path / "start.sh"
    file.write_text(config["data"]["deploy.yaml"])
    _, worker = templates_of(workload)
    *shell, text = worker["spec"]["containers"][0]["args"]
    # CANN is nowhere, also where the tests run on a machine that has it.
    text = text.replace(
        "exec bash", f"sed -i s,/usr/local/Ascend,{tmp_path}/no,g /tmp/start.sh; exec bash"
    )
    text = text.replace("/etc/tunan/deploy.yaml", str(file)).replace("/tmp/start.sh", str(start))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [*shell, text],
        env=os.environ | {"LWS_WORKER_INDEX": "1", "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith(f"no {tmp_path}/no/cann/set_env.sh and no ")
    script = start.read_text()
    assert script.startswith("# ascend910b3, on tunan-0-1.tunan\n")
    assert "--node-rank=1" in script
    assert "--master-addr=tunan-0.tunan" in script


@by_plan
def test_the_dockerfile_is_made_of_known_instructions_and_good_shell(plan: Plan) -> None:
    text = files_of(plan)["Dockerfile"]
    bodies = dict(re.findall(r"(?ms)^\w+ .*?<<'(\w+)'[^\n]*\n(.*?)^\1$", text))
    assert set(bodies) == {"STEPS", "ENVIRONMENT", "PROGRAM"}
    assert shellcheck(bodies["STEPS"]) == ""
    outside = re.sub(r"(?ms)(<<'(\w+)'[^\n]*\n).*?^\2$", r"\1", text)
    words = [line.split()[0] for line in outside.splitlines() if line and line[0] != "#"]
    known = ["FROM", "SHELL", "COPY", "RUN", "COPY", "COPY", "EXPOSE", "ENTRYPOINT", "CMD"]
    assert words == known


@pytest.mark.parametrize(
    ("plan", "base"),
    [
        (A2, "quay.io/ascend/cann:9.1.0-910b-ubuntu22.04-py3.12"),
        (A3, "quay.io/ascend/cann:9.1.0-a3-openeuler24.03-py3.12"),
        (CPU, "python:3.11-slim-bookworm"),
    ],
)
def test_the_base_image_is_that_of_the_chip_and_the_system(plan: Plan, base: str) -> None:
    assert f"\nFROM {base}\n" in files_of(plan)["Dockerfile"]


def test_no_file_has_a_name_left_to_fill() -> None:
    for plan in (A2, A3, CPU):
        for name, text in files_of(plan).items():
            assert not re.search(r"@[A-Z_]+@", text), name


def test_files_are_written_whole_and_the_programs_may_be_run(tmp_path: Path) -> None:
    files = files_of(A2)
    write_files(tmp_path, files, overwrite=False)
    written = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert written == set(files)
    assert (tmp_path / "with-env").stat().st_mode & 0o111
    write_files(tmp_path, files, overwrite=False)


def test_an_edited_file_is_not_replaced_unasked(tmp_path: Path) -> None:
    files = files_of(A2)
    write_files(tmp_path, files, overwrite=False)
    (tmp_path / "deploy.yaml").write_text("mine")
    (tmp_path / "env.sh").unlink()
    with pytest.raises(UsageError, match=r"deploy\.yaml is there and differs; --overwrite"):
        write_files(tmp_path, files, overwrite=False)
    assert not (tmp_path / "env.sh").exists()
    write_files(tmp_path, files, overwrite=True)
    assert (tmp_path / "deploy.yaml").read_text() == files["deploy.yaml"]


@pytest.mark.parametrize("folder", ["/proc/none", "a-file/inside"])
def test_a_folder_that_cannot_be_written_is_one_line(folder: str, tmp_path: Path) -> None:
    (tmp_path / "a-file").write_text("")
    with pytest.raises(OutsideError, match="name a folder that can be written"):
        write_files(tmp_path / folder, {"install.sh": "x"}, overwrite=True)


def test_a_file_that_is_no_text_differs(tmp_path: Path) -> None:
    (tmp_path / "install.sh").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is there and differs"):
        write_files(tmp_path, {"install.sh": "x"}, overwrite=False)


def test_a_310p_has_its_own_image_and_devices() -> None:
    files = files_of(INFERENCE)
    assert "FROM quay.io/ascend/cann:9.1.0-310p-openeuler24.03-py3.12" in files["Dockerfile"]
    assert 'huawei.com/Ascend310P: "2"' in files["kubernetes/deployment.yaml"]
    assert "kubernetes/leaderworkerset.yaml" not in files
    assert "triton-ascend==" not in files["Dockerfile"]
