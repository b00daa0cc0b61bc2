"""Versions, names and order of an installation."""

import re
import tomllib
from pathlib import Path

import pytest

from tunan.ascend.catalogue import releases
from tunan.errors import UsageError
from tunan.install.facts import packages, steps
from tunan.install.plan import (
    MACHINES,
    TARGETS,
    Plan,
    driver_minimum,
    instead_of,
    system_of,
)
from tunan.install.render import script

ROOT = Path(__file__).parents[2]
LOCKS = ("ascend-hardware.lock", "ascend-torch.lock", "ascend-vllm.lock")


@pytest.mark.parametrize("target", [t for t in TARGETS if t != "cpu"])
@pytest.mark.parametrize("machine", MACHINES)
def test_the_versions_are_those_of_the_newest_row_of_the_matrix(target: str, machine: str) -> None:
    text = script(Plan(target=target, system="ubuntu", machine=machine))
    release = releases()[0]
    pins = [
        f"vllm-ascend=={release.vllm_ascend} ",
        f"Ascend-cann-toolkit_{release.cann}_linux-{machine}.run",
        f"Ascend-cann-nnal_{release.cann}_linux-{machine}.run",
    ]
    # Its CPU build for x86-64 has no hash that could be locked.
    pins += [f"torch=={release.torch} --extra-index-url"] if machine == "x86_64" else []
    # The 310P takes no Triton.
    pins += [f"triton-ascend=={release.triton_ascend} "] if target != "ascend310p" else []
    assert [pin for pin in pins if pin not in text] == []
    assert ("get triton-ascend" in text) == (target != "ascend310p")
    assert ("locked ascend-torch.lock" in text) == (machine == "aarch64")


def test_the_locked_packages_are_of_that_row() -> None:
    release = releases()[0]
    pins = {name: version for file in LOCKS for name, (version, _) in locked(file).items()}
    assert pins["torch"] == release.torch
    assert pins["torch-npu"] == release.torch_npu
    assert pins["vllm"] == release.vllm[0]
    # Its wheels for each chip are on the vendor's index alone.
    assert "vllm-ascend" not in pins


@pytest.mark.parametrize("file", LOCKS)
def test_every_locked_package_has_hashes(file: str) -> None:
    assert [name for name, (_, hashes) in locked(file).items() if not hashes] == []


def test_what_this_project_needs_is_locked() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    needed = tomllib.loads(text)["project"]["dependencies"]
    names = {re.split(r"[><=!~\[ ;]", each)[0] for each in needed}
    assert names - locked("ascend-hardware.lock").keys() == set()


def locked(file: str) -> dict[str, tuple[str, int]]:
    """Version and number of hashes of each package."""
    text = (ROOT / "requirements" / file).read_text(encoding="utf-8")
    entries = re.split(r"(?m)^(?=\S)", text)
    pairs = [(entry.split()[0].split("=="), entry) for entry in entries if "==" in entry]
    return {name: (version, entry.count("--hash=sha256:")) for (name, version), entry in pairs}


@pytest.mark.parametrize(
    ("target", "machine", "names"),
    [
        (
            "ascend910b3",
            "aarch64",
            ["Ascend-hdk-910b-npu-driver_*_linux-aarch64.run", "Ascend-cann-910b-ops_9.1.0_linux-"],
        ),
        (
            "ascend910c",
            "aarch64",
            ["Atlas-A3-hdk-npu-driver_*_linux-aarch64.run", "Ascend-cann-A3-ops_9.1.0_linux-"],
        ),
        ("ascend910b", "x86_64", ["Ascend-hdk-910b-npu-driver_*_linux-x86-64.run"]),
        (
            "ascend310p",
            "aarch64",
            ["Ascend-hdk-310p-npu-driver_*_linux-aarch64.run", "Ascend-cann-310p-ops_9.1.0_linux-"],
        ),
    ],
)
def test_the_vendors_files_are_those_of_the_chip(
    target: str, machine: str, names: list[str]
) -> None:
    text = script(Plan(target=target, system="ubuntu", machine=machine))
    assert [name for name in names if name not in text] == []


def test_only_indexes_and_pages_of_the_data_are_named() -> None:
    data = packages()
    known = {*data.pages.model_dump().values(), *data.indexes.model_dump().values()}
    for machine in MACHINES:
        text = script(Plan(target="ascend910b3", system="ubuntu", machine=machine))
        assert set(re.findall(r"https?://[^\s)]+", text)) <= known


def test_the_driver_is_new_enough_for_what_a_deployment_uses() -> None:
    assert driver_minimum("A2") == driver_minimum("A3") == "25.5.1"
    assert driver_minimum("310P") == "25.5.0"


def test_an_upgrade_differs_from_a_first_installation_in_the_order_alone() -> None:
    assert sorted(steps().first) == sorted(steps().upgrade)
    assert steps().first.index("driver") < steps().first.index("firmware")
    assert steps().upgrade.index("firmware") < steps().upgrade.index("driver")


def test_the_system_is_read_from_os_release(tmp_path: Path) -> None:
    file = tmp_path / "os-release"
    file.write_text('NAME="openEuler"\nID="openEuler"\n')
    assert system_of(file) == "openeuler"
    file.write_text("ID=ubuntu\nVERSION_ID=22.04\n")
    assert system_of(file) == "ubuntu"


@pytest.mark.parametrize("content", ["ID=plan9\n", "", None])
def test_an_unknown_system_has_to_be_named(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "os-release"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError, match="is not known; name one: --os ubuntu, debian"):
        system_of(file)


@pytest.mark.parametrize("prefix", ["/opt/with blank", "/opt/$HOME", "relative"])
def test_a_prefix_that_needs_quotes_is_refused(prefix: str) -> None:
    with pytest.raises(UsageError, match="--prefix"):
        Plan(target="cpu", system="ubuntu", prefix=Path(prefix))


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("ascend910a", "Ascend 910A: vllm-ascend has no kernels for it"),
        ("ascend910ProB", "use MindIE"),
        ("ascend910", "Ascend 910A"),
        ("ascend310", "no large language model runs on it"),
        ("ascend950", "start vllm by hand"),
    ],
)
def test_a_chip_that_nothing_is_installed_for_is_told_what_to_do_instead(
    target: str, told: str
) -> None:
    assert told in (instead_of(target) or "")


@pytest.mark.parametrize("target", [*TARGETS, "plan9"])
def test_other_targets_are_not_turned_away(target: str) -> None:
    assert instead_of(target) is None
