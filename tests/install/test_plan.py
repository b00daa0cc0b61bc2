"""Versions, names and order of an installation."""

import re
from pathlib import Path

import pytest

from tunan.ascend.catalogue import releases
from tunan.errors import UsageError
from tunan.install.facts import packages, steps
from tunan.install.plan import MACHINES, TARGETS, Plan, driver_minimum, system_of
from tunan.install.render import script


@pytest.mark.parametrize("target", [t for t in TARGETS if t != "cpu"])
@pytest.mark.parametrize("machine", MACHINES)
def test_the_versions_are_those_of_the_newest_row_of_the_matrix(target: str, machine: str) -> None:
    text = script(Plan(target=target, system="ubuntu", machine=machine))
    release = releases()[0]
    for pin in (
        f"vllm=={release.vllm[0]} ",
        f"vllm-ascend=={release.vllm_ascend} ",
        f"torch=={release.torch} ",
        f"torch-npu=={release.torch_npu})",
        f"triton-ascend=={release.triton_ascend} ",
        f"Ascend-cann-toolkit_{release.cann}_linux-{machine}.run",
        f"Ascend-cann-nnal_{release.cann}_linux-{machine}.run",
    ):
        assert pin in text


def test_the_locked_packages_are_of_that_row() -> None:
    lock = Path(__file__).parents[2] / "requirements" / "ascend-hardware.lock"
    pins = dict(line.split("==") for line in lock.read_text().splitlines() if "==" in line)
    release = releases()[0]
    assert pins["torch"] == release.torch
    assert pins["torch-npu"] == release.torch_npu
    assert pins["vllm-ascend"] == release.vllm_ascend
    # vLLM declares another torch; it is built from source, beside these.
    assert "vllm" not in pins


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
