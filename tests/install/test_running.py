"""The installation script, run by a real shell among programs that only write down calls."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.install.machine import WHEEL, FakeMachine, fake_machine, fill
from tunan.cli.main import main
from tunan.install.plan import FILLED, SUMS


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    made = fake_machine(tmp_path)
    made.put_all()
    return made


def vendor(calls: list[str]) -> list[str]:
    return [call.rstrip() for call in calls if ".run" in call.split()[0]]


def test_on_a_new_machine_the_driver_comes_before_the_firmware(machine: FakeMachine) -> None:
    status, said, calls = machine.install()
    assert vendor(calls) == [
        "Ascend-hdk-910b-npu-driver_25.5.1_linux-aarch64.run --full --quiet --install-for-all",
        "Ascend-hdk-910b-npu-firmware_7.8.0.7.220.run --full --quiet",
    ]
    assert status == 3
    assert said == (
        "install: driver and firmware are in; restart the machine, then run this again\n"
    )


def test_the_drivers_user_is_there_before_the_driver(machine: FakeMachine) -> None:
    _, _, calls = machine.install(fails="id HwHiAiUser")
    names = [call.split()[0] for call in calls]
    user = next(i for i, call in enumerate(calls) if call.startswith("useradd -g HwHiAiUser"))
    assert user < names.index("Ascend-hdk-910b-npu-driver_25.5.1_linux-aarch64.run")


def test_after_the_restart_cann_the_packages_and_the_check_follow(machine: FakeMachine) -> None:
    machine.install()
    status, said, calls = machine.install()
    assert (status, said) == (0, "")
    cann = machine.plan.release.cann
    assert vendor(calls) == [
        f"Ascend-cann-{name}_{cann}_linux-aarch64.run --install --install-for-all --quiet"
        for name in ("toolkit", "910b-ops", "nnal")
    ]
    pip = [call for call in calls if call.startswith("pip install")]
    locks = machine.plan.project / "requirements"
    order = [
        f"--requirement {locks}/ascend-hardware.lock ",
        f"--requirement {locks}/ascend-torch.lock ",
        f"--requirement {locks}/ascend-vllm.lock --no-binary vllm --no-build-isolation",
        f"vllm-ascend=={machine.plan.release.vllm_ascend} ",
        "triton-ascend==",
        f"{machine.plan.project} ",
    ]
    where = [next(i for i, call in enumerate(pip) if n in call) for n in order]
    assert where == sorted(where)
    assert all("--no-deps" in call for call in pip)
    assert all(("--require-hashes" in call) == ("--requirement" in call) for call in pip)
    assert calls[-1].startswith("tunan doctor --target ascend910b3")


@pytest.mark.parametrize("folder", ["cann", "ascend-toolkit"])
def test_the_toolkit_is_found_where_its_version_puts_it(machine: FakeMachine, folder: str) -> None:
    name = f"Ascend-cann-toolkit_{machine.plan.release.cann}_linux-aarch64.run"
    machine.put(name, f"{folder}/set_env.sh", "echo $NOT_SET; false")
    machine.install()
    status, said, calls = machine.install()
    assert (status, said) == (0, "")
    assert calls[-1].startswith("tunan doctor")


def test_a_toolkit_that_is_nowhere_is_one_line(machine: FakeMachine) -> None:
    name = f"Ascend-cann-toolkit_{machine.plan.release.cann}_linux-aarch64.run"
    machine.put(name, "elsewhere/set_env.sh")
    machine.install()
    status, said, _ = machine.install()
    ascend = machine.plan.ascend
    assert (status, said) == (
        3,
        f"install: no {ascend}/cann/set_env.sh and no {ascend}/ascend-toolkit/set_env.sh: "
        "the toolkit is not there\n",
    )


def test_run_again_nothing_of_the_vendor_is_installed_twice(machine: FakeMachine) -> None:
    machine.install()
    machine.install()
    status, _, calls = machine.install()
    assert (status, vendor(calls)) == (0, [])


def test_an_edited_deployment_file_stays(machine: FakeMachine) -> None:
    edited = machine.plan.prefix / "deploy.yaml"
    machine.install()
    edited.parent.mkdir(exist_ok=True)
    edited.write_text("model: {path: /models/mine}")
    _, _, calls = machine.install()
    (written,) = [c.partition(" [")[0] for c in calls if c.startswith("tunan install")]
    arguments = written.removeprefix("tunan ").split()
    assert main(arguments) == 0
    assert edited.read_text() == "model: {path: /models/mine}"
    manifest = machine.plan.prefix / "kubernetes" / "deployment.yaml"
    assert "path: /models/mine" in manifest.read_text()


def test_an_upgrade_loads_the_firmware_before_the_driver(tmp_path: Path) -> None:
    machine = fake_machine(tmp_path, upgrade=True)
    machine.put_all()
    old = machine.plan.ascend / "driver" / "version.info"
    old.parent.mkdir(parents=True)
    old.write_text("Version=23.0.0\n")
    status, _, calls = machine.install()
    assert vendor(calls) == [
        "Ascend-hdk-910b-npu-firmware_7.8.0.7.220.run --upgrade --quiet",
        "Ascend-hdk-910b-npu-driver_25.5.1_linux-aarch64.run --upgrade --quiet",
    ]
    assert status == 3


@pytest.mark.parametrize(("version", "stays"), [("26.0.0", True), ("24.1.0", False)])
def test_without_a_file_of_the_driver_a_new_enough_one_stays(
    tmp_path: Path, version: str, stays: bool
) -> None:
    machine = fake_machine(tmp_path, upgrade=True)
    machine.put_all()
    machine.put_hdk(version, "7.8")
    machine.install()
    for file in machine.plan.packages.glob("*-hdk-*"):
        file.unlink()
    for part in ("driver", "firmware"):
        info = machine.plan.ascend / part / "version.info"
        info.parent.mkdir(parents=True, exist_ok=True)
        info.write_text(f"Version={version}\n")
    status, said, _ = machine.install()
    assert (status == 0) is stays, said


def test_a_file_that_is_missing_is_named_with_its_page(machine: FakeMachine) -> None:
    machine.install()
    cann = machine.plan.release.cann
    (machine.plan.packages / f"Ascend-cann-nnal_{cann}_linux-aarch64.run").unlink()
    status, said, _ = machine.install()
    assert status == 3
    assert said.startswith(f"install: no Ascend-cann-nnal_{cann}_linux-aarch64.run in ")
    assert "https://www.hiascend.com/cann/download (with an account there)" in said
    assert len(said.splitlines()) == 1


def test_two_drivers_are_not_chosen_from(machine: FakeMachine) -> None:
    machine.put_hdk("26.0.0", "9.0")
    status, said, _ = machine.install()
    assert status == 3
    assert "2 files are called Ascend-hdk-910b-npu-driver_*_linux-aarch64.run" in said


def test_without_the_clone_nothing_is_begun(machine: FakeMachine) -> None:
    plan = replace(machine.plan, project=machine.folder / "elsewhere")
    status, said, calls = machine.install(plan=plan)
    assert (status, calls) == (3, [])
    assert said.endswith("; set SELF in this script to the clone of this project\n")


@pytest.mark.parametrize(
    ("fails", "line"),
    [
        ("apt-get install -y gcc", "the system's packages could not be installed: apt-get"),
        ("vllm-ascend==", "vllm-ascend 0.23.0.post1 could not be installed"),
        ("tunan doctor", "tunan doctor names what is missing, above"),
        ("npu-smi", "npu-smi info fails: the driver does not run"),
    ],
)
def test_a_command_that_fails_is_one_line(machine: FakeMachine, fails: str, line: str) -> None:
    machine.install()
    status, said, _ = machine.install(fails)
    assert status == 3
    assert said.startswith(f"install: {line}")
    assert len(said.splitlines()) == 1


def test_a_filled_folder_is_all_that_pip_asks(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    fill(wheels)
    machine = fake_machine(tmp_path, wheels=wheels)
    machine.put_all()
    machine.install()
    status, _, calls = machine.install()
    pip = [call for call in calls if call.startswith("pip install")]
    assert status == 0
    assert pip
    assert all("[no index]" in call and "--no-binary" not in call for call in pip)
    assert f"--requirement {wheels}/ascend-hardware.lock" in pip[0]
    assert "tunan==" in pip[-1]


def test_a_folder_in_which_a_file_has_changed_is_not_used(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    fill(wheels)
    (wheels / WHEEL).write_text("another wheel")
    machine = fake_machine(tmp_path, wheels=wheels)
    machine.put_all()
    status, said, calls = machine.install()
    assert (status, calls) == (3, [])
    assert WHEEL in said
    assert said.endswith(f"install: a file in {wheels} is not as it was; fill the folder again\n")


def test_an_empty_folder_is_filled_and_then_used(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    machine = fake_machine(tmp_path, wheels=wheels)
    status, said, calls = machine.install()
    assert (status, said) == (0, "")
    built = [call for call in calls if call.startswith("pip wheel")]
    assert all(f"--wheel-dir {wheels}" in call and "--no-deps" in call for call in built)
    assert any("ascend-vllm.lock --no-binary vllm" in call for call in built)
    assert sum("--require-hashes" in call for call in built) == 3
    assert not vendor(calls)
    assert not machine.plan.fills_wheels
    locks = [f"ascend-{name}.lock" for name in ("hardware", "torch", "vllm")]
    assert sorted(p.name for p in wheels.iterdir()) == sorted([FILLED, SUMS, *locks])
    # What was built has hashes of its own: those of the folder are in its list of sums.
    assert (wheels / locks[0]).read_text() == "hardware==1\n"
    sums = (wheels / SUMS).read_text().splitlines()
    assert sorted(line.split()[1] for line in sums) == [f"./{name}" for name in locks]


def test_a_folder_whose_filling_failed_does_not_look_filled(tmp_path: Path) -> None:
    machine = fake_machine(tmp_path, wheels=tmp_path / "wheels")
    status, _, _ = machine.install(fails="pip wheel")
    assert status != 0
    assert machine.plan.fills_wheels


def test_on_another_architecture_nothing_is_installed(machine: FakeMachine) -> None:
    status, said, calls = machine.install(plan=replace(machine.plan, machine="x86_64"))
    assert (status, said) == (3, "install: this is aarch64, the steps are for x86_64\n")
    assert not vendor(calls)
