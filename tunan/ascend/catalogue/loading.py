"""Reads the catalogue's data files, each once."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tunan.ascend.catalogue.facts import (
    Chip,
    Chips,
    DriverGate,
    DriverGates,
    Generation,
    Kunpeng,
    Kunpengs,
    Model,
    Models,
    Profile,
    Profiles,
    Release,
    Releases,
)

DATA = Path(__file__).parent


def chips() -> Mapping[str, Chip]:
    """By key: `910a`, `910b1`, ... `950`."""
    return _chips().chips


def kunpengs() -> Mapping[str, Kunpeng]:
    """By model: `920 5250`."""
    return _kunpengs().models


def generations() -> Mapping[str, Generation]:
    """Of the Kunpengs, by name."""
    return _kunpengs().generations


@cache
def releases() -> tuple[Release, ...]:
    """Of vllm-ascend, the newest first."""
    return Releases.model_validate(_read("compatibility.yaml")).releases


@cache
def driver_gates() -> tuple[DriverGate, ...]:
    """What needs which driver."""
    return DriverGates.model_validate(_read("drivers.yaml")).gates


@cache
def profiles() -> Mapping[str, Profile]:
    """`minimum` and `recommended`."""
    return Profiles.model_validate(_read("profiles.yaml")).profiles


@cache
def models() -> tuple[Model, ...]:
    """The smallest first."""
    return Models.model_validate(_read("models.yaml")).models


@cache
def _chips() -> Chips:
    return Chips.model_validate(_read("chips.yaml"))


@cache
def _kunpengs() -> Kunpengs:
    return Kunpengs.model_validate(_read("kunpeng.yaml"))


def _read(name: str) -> Any:
    import yaml

    # libyaml's loader where PyYAML was built with it: ten times as fast, for a quick start.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load((DATA / name).read_text(encoding="utf-8"), Loader=loader)  # noqa: S506
