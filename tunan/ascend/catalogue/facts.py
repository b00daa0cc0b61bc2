"""The schema of the catalogue's data files. Every figure carries the key of its source."""

from typing import Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

Value = TypeVar("Value")
Support = Literal["yes", "experimental", "no"]


class Fact(BaseModel):
    """Frozen, and an unknown key is an error: a misspelt figure must not pass as absent."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Figure(Fact, Generic[Value]):
    """One value and the key of where it comes from."""

    value: Value
    source: str


class Chip(Fact):
    """One kind of Ascend chip. All figures are of one die (device).

    `names`: as the driver prints them, lower case, without "Ascend". `target`: what `--target`
    takes, None where Tunan has none. `instead`: what to do where it cannot be used.
    `memory_gib`: the sizes it is sold with. `memory_gbps` in 10^9 bytes a second.
    """

    name: str
    names: tuple[str, ...]
    family: str
    target: str | None
    dies: int
    bf16: Figure[bool]
    vllm_ascend: Figure[Support]
    instead: str | None = None
    memory_gib: Figure[tuple[int, ...]]
    fp16_tflops: Figure[float] | None = None
    int8_tops: Figure[float] | None = None
    memory_gbps: Figure[float] | None = None
    aicores: Figure[tuple[int, ...]] | None = None
    watts: Figure[float] | None = None
    links: Figure[str] | None = None
    pci: Figure[str] | None = None

    @property
    def is_served(self) -> bool:
        """Whether vllm-ascend runs on it and Tunan has a target for it."""
        return self.target is not None and self.vllm_ascend.value != "no"


class Chips(Fact):
    """chips.yaml."""

    chips: dict[str, Chip]
    sources: dict[str, str]


class Kunpeng(Fact):
    """One Kunpeng model: figures of one socket; `memory_gbps` in 10^9 bytes a second."""

    cores: int
    ghz: float
    threads: int
    memory: str
    memory_gbps: float | None
    generation: str
    source: str


class Generation(Fact):
    """What a generation of Kunpeng computes with: lscpu flags it has, and those it lacks."""

    isa: tuple[str, ...]
    lacks: tuple[str, ...]
    part: str | None
    source: str


class Kunpengs(Fact):
    """kunpeng.yaml."""

    models: dict[str, Kunpeng]
    generations: dict[str, Generation]
    sources: dict[str, str]


class Release(Fact):
    """One release of vllm-ascend and all that goes with it; `python`: from and below."""

    vllm_ascend: str
    vllm: tuple[str, ...]
    python: tuple[str, str]
    cann: str
    torch: str
    torch_npu: str
    triton_ascend: str | None
    source: str


class Releases(Fact):
    """compatibility.yaml, the newest release first."""

    releases: tuple[Release, ...]
    sources: dict[str, str]


class DriverGate(Fact):
    """What needs at least the driver `driver` (and CANN `cann`); `strict`: not only advice."""

    what: str
    driver: str
    cann: str | None
    needs: Literal["always", "graphs", "kv_pool", "cann85"]
    families: tuple[str, ...]
    strict: bool
    source: str


class DriverGates(Fact):
    """drivers.yaml."""

    gates: tuple[DriverGate, ...]
    sources: dict[str, str]


class Profile(Fact):
    """A machine to compare with: memory in GB and NVMe in TB (powers of ten)."""

    cpu: str
    sockets: int
    npus: int
    npu_memory_gib: int
    memory_gb: int
    nvme_tb: float


class Profiles(Fact):
    """profiles.yaml."""

    profiles: dict[str, Profile]
    source: str


class Model(Fact):
    """What a model takes. `kv_bytes`: of one token in bfloat16 over all layers; `kv_split`:
    ranks divide it; `tensor`: the tensor-parallel degrees up to 16 that its shapes allow;
    `experts`: parameters of the routed experts, which expert parallelism spreads over all ranks.
    """

    name: str
    architecture: str
    layers: int
    bf16_bytes: int
    int8_bytes: int
    kv_bytes: int
    kv_split: bool
    latent_attention: bool
    max_tokens: int
    tensor: tuple[int, ...]
    experts: int = 0


class Models(Fact):
    """models.yaml, the smallest first."""

    models: tuple[Model, ...]
    source: str
