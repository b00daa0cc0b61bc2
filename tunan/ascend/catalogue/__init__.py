"""What is known of Ascend chips, Kunpeng processors, versions and models: data with sources."""

from tunan.ascend.catalogue.facts import (
    Chip,
    DriverGate,
    Figure,
    Kunpeng,
    Model,
    Profile,
    Release,
)
from tunan.ascend.catalogue.identity import Identity, identify
from tunan.ascend.catalogue.loading import (
    chips,
    driver_gates,
    generations,
    kunpengs,
    models,
    profiles,
    releases,
)

__all__ = [
    "Chip",
    "DriverGate",
    "Figure",
    "Identity",
    "Kunpeng",
    "Model",
    "Profile",
    "Release",
    "chips",
    "driver_gates",
    "generations",
    "identify",
    "kunpengs",
    "models",
    "profiles",
    "releases",
]
