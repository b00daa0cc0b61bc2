"""`Deployment`: what `deploy.yaml` may say, with every default. Nothing here looks at a machine."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from tunan.config.etcd import Etcd
from tunan.config.monitor import Monitor
from tunan.config.replicas import Replicas
from tunan.config.section import Count, FilePath, Port, Section
from tunan.targets import Target

DType = Literal["auto", "bfloat16", "float16", "float32"]


# Flags of vLLM that would take the engine out of the supervisor's hands, and what to use instead.
OWN_FLAGS = {
    "--api-key": "`gateway.api_keys_file`",
    "--headless": "`nodes`",
    "--help": "`tunan serve --help`",
    "-h": "`tunan serve --help`",
    "--host": "`gateway.host`",
    "--model": "`model.path`",
    "--port": "`gateway.port`",
    "--root-path": "a proxy in front of the gateway",
    "--served-model-name": "`model.served_model_name`",
    "--ssl-certfile": "`gateway.tls_cert_file`",
    "--ssl-keyfile": "`gateway.tls_key_file`",
    "--uds": "`gateway.host` and `gateway.port`",
}


class Model(Section):
    """Which checkpoint, and how much of it one request may use."""

    path: FilePath = Field(description="Checkpoint directory (config.json and blocks)")
    served_model_name: str | None = Field(
        default=None, description="Name in the API; default: the directory's"
    )
    max_model_len: Count | None = Field(
        default=None, description="Longest prompt + answer, in tokens"
    )
    dtype: DType = Field(default="auto", description="Type of the weights in memory")
    enforce_eager: bool | None = Field(
        default=None, description="false: torch.compile (slow first start); unset: eager on a CPU"
    )
    trust_remote_code: bool = Field(
        default=False, description="Run Python code found in the checkpoint"
    )


class Parallel(Section):
    """How many devices (on a CPU: NUMA nodes) share one replica."""

    tensor: Count = Field(default=1, description="Tensor-parallel size")
    pipeline: Count = Field(default=1, description="Pipeline-parallel size")
    data: Count = Field(
        default=1, description="Copies that answer side by side and share the experts; NPU only"
    )
    layer_partition: tuple[Count, ...] | None = Field(
        default=None,
        strict=False,
        description="Layers of each pipeline stage, where they are uneven",
    )
    devices: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        default=None,
        strict=False,
        description="Device numbers to use, in rank order; default: the first",
    )

    @property
    def world_size(self) -> int:
        """Number of ranks of one replica."""
        return self.tensor * self.pipeline * self.data

    @model_validator(mode="after")
    def _agree(self) -> "Parallel":
        if self.layer_partition is not None and len(self.layer_partition) != self.pipeline:
            raise ValueError(
                f"layer_partition has {len(self.layer_partition)} stages, pipeline is "
                f"{self.pipeline}"
            )
        if self.devices is not None and len(set(self.devices)) != len(self.devices):
            raise ValueError("devices names a device twice")
        return self


class Memory(Section):
    """Memory of weights and KV cache."""

    utilization: float = Field(
        default=0.9, gt=0, le=1, strict=False, description="Part of what is free that may be used"
    )
    kv_cache: Literal["auto", "int8", "fp8"] = Field(
        default="auto", description="Type of the KV cache"
    )
    kv_cache_gib: float | None = Field(
        default=None,
        gt=0,
        le=1 << 20,
        strict=False,
        description="Size of the KV cache; unset: from what is free",
    )
    swap_gib: float = Field(
        default=0, ge=0, strict=False, description="Host memory for moved-out KV"
    )


class Scheduler(Section):
    """What the engine does first when it cannot do all."""

    policy: Literal["fcfs", "priority", "slo"] = Field(
        default="fcfs", description="Order of requests"
    )
    max_num_seqs: Count | None = Field(default=None, description="Requests running at once")
    max_num_batched_tokens: Count | None = Field(
        default=None, description="Tokens in one engine step"
    )
    ttft_ms: float | None = Field(
        default=None, gt=0, strict=False, description="Time to first token goal"
    )
    tpot_ms: float | None = Field(
        default=None, gt=0, strict=False, description="Time per token goal"
    )


class Warmup(Section):
    """Requests sent before `/ready` says yes."""

    requests: Annotated[int, Field(ge=0)] = Field(
        default=100,
        description="At most so many; fewer when three in a row agree within 10 %; 0: none",
    )


class Gateway(Section):
    """The front door."""

    host: str = Field(default="127.0.0.1", description="Address to listen on")
    port: Port = Field(default=8080, description="Port to listen on; 0: any free one")
    api_keys_file: FilePath | None = Field(
        default=None, description="One key a line: plain or sha256:HEX"
    )
    max_body_mib: float = Field(default=32, gt=0, strict=False, description="Largest request body")
    max_prompt_tokens: Count | None = Field(
        default=None, description="Of one prompt: ids are counted, 8 bytes of text are one at least"
    )
    startup_timeout_s: float = Field(
        default=1800,
        gt=0,
        strict=False,
        description="How long a start may stand still (loading and warm-up count as going on)",
    )
    shutdown_timeout_s: float = Field(
        default=30, ge=0, strict=False, description="How long running streams may finish on SIGTERM"
    )
    max_in_flight: Count = Field(default=256, description="Requests at one replica at once")
    max_queued: Annotated[int, Field(ge=0)] = Field(
        default=256, description="Requests that may wait for a replica; one more is 429"
    )
    queue_timeout_s: float = Field(
        default=30, gt=0, strict=False, description="How long one may wait; then 503"
    )
    request_timeout_s: float = Field(
        default=3600, gt=0, strict=False, description="How long one request may take in all"
    )
    resume: bool = Field(default=True, description="Streams go on after the loss of their replica")
    resume_sampled: bool | None = Field(
        default=None,
        description="The replicas have Tunan's sampler: sampled streams resume too; "
        "unset: if all of them were started here",
    )
    resume_memory_mib: float = Field(
        default=2, gt=0, strict=False, description="What is remembered of one stream at most"
    )
    resume_wait_s: float = Field(
        default=60,
        ge=0,
        strict=False,
        description="How long a broken stream waits for a ready replica",
    )
    retries: Annotated[int, Field(ge=0)] = Field(
        default=3, description="Attempts after the first that brought no token"
    )
    max_losses: Count = Field(
        default=4, description="Replicas that may die under one request before it is ended"
    )
    stall_s: float = Field(
        default=2, gt=0, strict=False, description="A replica silent for less has not stalled"
    )
    stall_multiple: float = Field(
        default=20, ge=1, strict=False, description="Stalled after so many of its token intervals"
    )
    first_token_s: float = Field(
        default=120, gt=0, strict=False, description="Time allowed until the first token"
    )
    probe_interval_s: float = Field(
        default=1, gt=0, strict=False, description="Time between two health probes"
    )
    probe_timeout_s: float = Field(
        default=1, gt=0, strict=False, description="A probe without an answer for so long failed"
    )
    prefix_kib: float = Field(
        default=4, ge=0, strict=False, description="Start of a prompt that chooses its replica"
    )
    requests_per_minute: Count | None = Field(default=None, description="Of one API key")
    tokens_per_minute: Count | None = Field(
        default=None, description="Of one API key, prompts (estimated) and answers together"
    )
    requests_at_once: Count | None = Field(default=None, description="Of one API key")
    admin_keys_file: FilePath | None = Field(
        default=None, description="Keys of /admin, as in api_keys_file; unset: there is no /admin"
    )
    max_header_kib: float = Field(
        default=64, gt=0, strict=False, description="Largest head of a request"
    )
    header_timeout_s: float = Field(
        default=30, gt=0, strict=False, description="How long a request's head may take to come"
    )
    body_timeout_s: float = Field(
        default=60, gt=0, strict=False, description="How long a request's body may take to come"
    )
    access_log: FilePath | None = Field(
        default=None, description="File for one JSON line a request, without prompts and keys"
    )
    tls_cert_file: FilePath | None = Field(default=None, description="Certificate chain (PEM)")
    tls_key_file: FilePath | None = Field(default=None, description="Its private key (PEM)")
    tls_client_ca_file: FilePath | None = Field(
        default=None, description="Clients must show a certificate that these authorities signed"
    )
    replica_ca_file: FilePath | None = Field(
        default=None, description="Authorities that replicas at https:// are checked against"
    )
    replica_cert_file: FilePath | None = Field(
        default=None, description="Certificate to show to replicas (PEM, with its key)"
    )
    etcd: Etcd = Etcd()


class Deployment(Section):
    """One service: `tunan serve --config deploy.yaml`.

    Unknown keys, wrong types and values out of range raise `pydantic.ValidationError`;
    `load_deployment` turns that into one line (`UsageError`).
    """

    name: str = Field(
        default="tunan",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
        description="Name of the service",
    )
    model: Model
    target: Target = Field(default="auto", description="Where it runs; auto looks at the machine")
    parallel: Parallel = Parallel()
    nodes: tuple[str, ...] = Field(
        default=(), strict=False, description="Addresses of the machines; the first is the head"
    )
    memory: Memory = Memory()
    scheduler: Scheduler = Scheduler()
    warmup: Warmup = Warmup()
    replicas: Replicas = Replicas()
    gateway: Gateway = Gateway()
    monitor: Monitor = Monitor()
    engine_arguments: tuple[str, ...] = Field(
        default=(), strict=False, description="Further vLLM flags, handed over as they are"
    )

    @field_validator("engine_arguments")
    @classmethod
    def _leave_ours_alone(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for argument in given:
            flag = argument.split("=", 1)[0].replace("_", "-")
            if flag in OWN_FLAGS:
                raise ValueError(f"{flag} is not handed to the engine; use {OWN_FLAGS[flag]}")
        return given

    @property
    def served_model_name(self) -> str:
        """The name clients ask for: as configured, else the checkpoint directory's."""
        return self.model.served_model_name or self.model.path.resolve().name
