"""The schema of packages.yaml and steps.yaml, and their reading, each once."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tunan.ascend.catalogue.facts import Fact

DATA = Path(__file__).parent


class Family(Fact):
    """How the vendor's files for a family of chips are called, and the devices of one server."""

    hdk: str
    ops: str
    image: str
    devices: int
    resource: str
    triton: bool
    source: str


class Files(Fact):
    """Names of the vendor's files; a * stands for a version that is not pinned."""

    driver: str
    firmware: str
    toolkit: str
    ops: str
    nnal: str


class Pages(Fact):
    """Where they are got, with an account."""

    hdk: str
    cann: str


class Indexes(Fact):
    """Package indexes beside pip's own."""

    variant: str
    ascend: str
    torch: str


class System(Fact):
    """A distribution: `ids` of /etc/os-release, its commands and what its packages are called."""

    ids: tuple[str, ...]
    refresh: str
    install: str
    driver: str
    build: str
    after: str
    cpu: str
    python: str
    base: str


class Packages(Fact):
    """packages.yaml."""

    families: dict[str, Family]
    files: Files
    pages: Pages
    indexes: Indexes
    image: str
    cpu_image: str
    systems: dict[str, System]
    sources: dict[str, str]


class Steps(Fact):
    """steps.yaml: the names of the steps of each kind of installation, in order."""

    first: tuple[str, ...]
    upgrade: tuple[str, ...]
    cpu: tuple[str, ...]
    wheels: tuple[str, ...]
    wheels_cpu: tuple[str, ...]
    image: tuple[str, ...]
    image_cpu: tuple[str, ...]


@cache
def packages() -> Packages:
    """What is installed from where."""
    return Packages.model_validate(_read("packages.yaml"))


@cache
def steps() -> Steps:
    """What comes after what."""
    return Steps.model_validate(_read("steps.yaml"))


def _read(name: str) -> Mapping[str, Any]:
    import yaml

    content: Mapping[str, Any] = yaml.safe_load((DATA / name).read_text(encoding="utf-8"))
    return content
