"""A machine on which installation scripts run, among programs that only write down calls."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tunan.install.plan import FILLED, SUMS, Plan
from tunan.install.render import script

# One program under many names: it notes its call and does what the script looks at afterwards.
FAKE_PROGRAM = r"""#!/bin/bash
name=${0##*/}
pip=${PIP_NO_INDEX:+[no index]}${PIP_NO_BINARY:+[no binary $PIP_NO_BINARY]}
echo "$name $* $pip" >>"$FAKE_LOG"
case "$name $*" in
"id -u") echo 0 ;;
"uname -m") echo aarch64 ;;
"uname -r") echo 5.10 ;;
python3.*" -m venv "*)
    mkdir -p "$3/bin" && ln -sf "$0" "$3/bin/pip" && ln -sf "$0" "$3/bin/tunan"
    ;;
esac
[ -z "${FAKE_FAILS:-}" ] || [[ "$name $*" != *"$FAKE_FAILS"* ]]
"""
# A file of the vendor: notes its call and leaves what the real one would.
FAKE_PACKAGE = r"""echo "{name} $*" >>"$FAKE_LOG"
mkdir -p {made.parent}
echo '{content}' >{made}
"""
# Of what a filled folder holds, one file.
WHEEL = "einops-0.8.2-py3-none-any.whl"
PROGRAMS = (
    *("apt-get", "getent", "groupadd", "id", "npu-smi"),
    *("python3.11", "uname", "update-alternatives", "useradd"),
)


@dataclass(frozen=True)
class FakeMachine:
    """Everything lies in `folder`; `plan` is what is installed."""

    folder: Path
    plan: Plan

    def put(self, name: str, made: str, content: str = "set_env") -> None:
        """A file of the vendor, which makes `made` below the vendor's folder."""
        text = FAKE_PACKAGE.format(name=name, made=self.plan.ascend / made, content=content)
        (self.plan.packages / name).write_text(text)

    def put_all(self) -> None:
        """All files of one first installation on a 910B3."""
        driver, firmware = "25.5.1", "7.8.0.7.220"
        self.put_hdk(driver, firmware)
        cann = self.plan.release.cann
        toolkit = "ascend-toolkit/set_env.sh"
        self.put(f"Ascend-cann-toolkit_{cann}_linux-aarch64.run", toolkit, "echo $NOT_SET; false")
        self.put(f"Ascend-cann-910b-ops_{cann}_linux-aarch64.run", "opp/kernels")
        self.put(f"Ascend-cann-nnal_{cann}_linux-aarch64.run", "nnal/atb/set_env.sh", ":")

    def put_hdk(self, driver: str, firmware: str) -> None:
        """Driver and firmware."""
        name = f"Ascend-hdk-910b-npu-driver_{driver}_linux-aarch64.run"
        self.put(name, "driver/version.info", f"Version={driver}")
        name = f"Ascend-hdk-910b-npu-firmware_{firmware}.run"
        self.put(name, "firmware/version.info", f"Version={firmware}")

    def install(self, fails: str = "", plan: Plan | None = None) -> tuple[int, str, list[str]]:
        """Runs the script: its status, its standard error, and the calls it made, in order."""
        log = self.folder / "log"
        log.write_text("")
        file = self.folder / "script.sh"
        file.write_text(script(plan or self.plan))
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", str(file)],
            env={"PATH": path, "FAKE_LOG": str(log), "FAKE_FAILS": fails},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr, log.read_text().splitlines()


def fill(wheels: Path) -> None:
    """As the script that fills a folder leaves it."""
    wheels.mkdir()
    (wheels / WHEEL).write_text("a wheel")
    sums = subprocess.run(["sha256sum", WHEEL], cwd=wheels, capture_output=True, check=True).stdout
    (wheels / SUMS).write_bytes(sums)
    (wheels / FILLED).touch()


def fake_machine(folder: Path, *, upgrade: bool = False, wheels: Path | None = None) -> FakeMachine:
    """Without any file of the vendor yet."""
    (folder / "bin").mkdir()
    program = folder / "fake_program"
    program.write_text(FAKE_PROGRAM)
    program.chmod(0o755)
    for name in PROGRAMS:
        (folder / "bin" / name).symlink_to(program)
    plan = Plan(
        target="ascend910b3",
        system="ubuntu",
        upgrade=upgrade,
        prefix=folder / "tunan",
        packages=folder / "packages",
        wheels=wheels,
        project=folder / "project",
        ascend=folder / "Ascend",
    )
    plan.packages.mkdir()
    locks = plan.project / "requirements"
    locks.mkdir(parents=True)
    for name in ("hardware", "torch", "vllm"):
        (locks / f"ascend-{name}.lock").write_text(f"{name}==1 \\\n    --hash=sha256:00\n")
    return FakeMachine(folder, plan)
