"""The catalogue is complete, has a source for every figure, and agrees with what the code pins."""

from typing import Any

import pytest
import yaml

from tunan.ascend import catalogue, target
from tunan.ascend.catalogue import facts, identify
from tunan.ascend.catalogue.loading import DATA
from tunan.targets import TARGETS

FILES = sorted(file.name for file in DATA.glob("*.yaml"))


def read(name: str) -> Any:
    return yaml.safe_load((DATA / name).read_text(encoding="utf-8"))


def named_sources(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["source"]} if isinstance(node.get("source"), str) else set()
        return own.union(*(named_sources(value) for value in node.values()))
    if isinstance(node, list):
        return set().union(*(named_sources(value) for value in node))
    return set()


@pytest.mark.parametrize("name", FILES)
def test_every_source_that_is_named_is_given_and_every_one_given_is_named(name: str) -> None:
    content = read(name)
    if "sources" in content:
        given = set(content.pop("sources"))
        assert named_sources(content) == given
    else:
        assert content["source"]


@pytest.mark.parametrize("chip", list(catalogue.chips()))
def test_no_figure_of_a_chip_is_without_a_source(chip: str) -> None:
    plain = {"name", "names", "family", "target", "dies", "instead"}
    for key, value in read("chips.yaml")["chips"][chip].items():
        assert key in plain or set(value) == {"value", "source"}, key


def test_every_chip_that_is_asked_for_is_there() -> None:
    expected = {"910a", "910b1", "910b2", "910b3", "910b4", "910b4-1", "910c", "310p", "310", "950"}
    assert set(catalogue.chips()) == expected


def test_every_ascend_target_has_a_chip() -> None:
    targets = {chip.target for chip in catalogue.chips().values()}
    for name in TARGETS:
        if name.startswith("ascend") and name != "ascend910b":
            assert name in targets, name


def test_a_chip_without_kernels_says_what_to_do_instead() -> None:
    for chip in catalogue.chips().values():
        assert chip.is_served or chip.instead


def test_the_910a_has_no_bfloat16_and_is_not_supported() -> None:
    first = catalogue.chips()["910a"]
    assert not first.bf16.value
    assert first.vllm_ascend.value == "no"
    assert not first.is_served


def test_the_newest_release_is_the_one_that_the_code_pins() -> None:
    newest = catalogue.releases()[0]
    assert newest.vllm_ascend == target.VLLM_ASCEND_VERSION
    assert newest.vllm == (target.VLLM_VERSION,)
    assert newest.torch_npu == target.TORCH_NPU_VERSION
    assert newest.cann == target.CANN_VERSION


def test_the_matrix_goes_from_0_7_3_to_0_23_0() -> None:
    names = [release.vllm_ascend for release in catalogue.releases()]
    assert {"0.7.3", "0.9.1", "0.11.0", "0.13.0", "0.18.0", "0.23.0"} <= set(names)
    assert len(set(names)) == len(names)


def test_ranks_that_a_model_allows_are_ascending_and_begin_with_one() -> None:
    for model in catalogue.models():
        assert model.tensor[0] == 1
        assert list(model.tensor) == sorted(set(model.tensor))
        assert model.int8_bytes < model.bf16_bytes


def test_experts_are_most_of_a_model_that_has_some_and_not_all_of_it() -> None:
    for model in catalogue.models():
        assert bool(model.experts) == model.latent_attention
        if model.experts:
            assert 0.9 < model.experts * 2 / model.bf16_bytes < 1


def test_a_misspelt_key_is_an_error() -> None:
    content = read("profiles.yaml")
    content["profiles"]["minimum"]["memory"] = 1
    with pytest.raises(ValueError, match=r"profiles\.minimum\.memory"):
        facts.Profiles.model_validate(content)


@pytest.mark.parametrize(
    ("name", "ddr", "dual", "key"),
    [
        ("910B3", 0, None, "910b3"),
        ("Ascend910B4-1", 0, None, "910b4-1"),
        ("Ascend910_9391", None, None, "910c"),
        ("310P3", None, None, "310p"),
        ("Ascend950PR", None, None, "950"),
        ("910ProB", None, None, "910a"),
    ],
)
def test_a_chip_is_known_by_its_name(
    name: str, ddr: int | None, dual: bool | None, key: str
) -> None:
    assert identify(name, ddr_mb=ddr, dual_die=dual).chip == catalogue.chips()[key]


def test_a_910b_with_ddr_is_a_910a() -> None:
    assert identify("910B", ddr_mb=15665).chip == catalogue.chips()["910a"]


def test_a_910b_without_ddr_is_one_of_the_a2_and_no_more_is_said() -> None:
    found = identify("910B", ddr_mb=0)
    assert (found.chip, found.family) == (None, "A2")


def test_an_ascend910_with_two_dies_is_a_910c() -> None:
    assert identify("Ascend910", ddr_mb=0, dual_die=True).chip == catalogue.chips()["910c"]


@pytest.mark.parametrize("name", ["Ascend910", "910B", "xxx", "", None])
def test_what_cannot_be_told_is_not_guessed(name: str | None) -> None:
    found = identify(name)
    assert (found.chip, found.family) == (None, None)
    assert found.why
