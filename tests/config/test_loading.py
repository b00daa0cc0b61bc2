"""Reading deployment files, and how their mistakes are told."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunan.config import deployment_from, load_deployment
from tunan.errors import UsageError

GOOD = """\
name: deepseek-67b
model: {path: /models/deepseek-67b-w8a8, max_model_len: 8192}
target: auto
parallel: {tensor: 4, pipeline: 1}
nodes: [10.0.0.1]
memory: {utilization: 0.9, kv_cache: int8, swap_gib: 16}
scheduler: {policy: slo, ttft_ms: 120, tpot_ms: 50}
warmup: {requests: 100}
replicas: {count: 2, standby: 1}
gateway: {host: 127.0.0.1, port: 8080, api_keys_file: keys.txt}
monitor: {port: 8000, interval_s: 5}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "deploy.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_key_of_the_design_is_known(tmp_path: Path) -> None:
    deployment = load_deployment(write(tmp_path, GOOD))
    assert deployment.parallel.tensor == 4
    assert deployment.memory.kv_cache == "int8"
    assert deployment.scheduler.ttft_ms == 120


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {path: /m}\ngatway: {port: 1}\n", r":2: unknown key `gatway`; did you mean `ga"),
        ("model:\n  path: /m\n  max_len: 1\n", r":3: unknown key `model.max_len`; did you mean"),
        ("model: {path: /m}\nzzz: 1\n", r":2: unknown key `zzz`; known are name, model,"),
        ("name: x\n", "`model` is missing"),
        ("model: {}\n", r":1: `model.path` is missing"),
        ("model: {path: /m}\nwarmup: 3\n", r":2: `warmup` must be a section"),
        ("model: {path: /m}\nwarmup: {requests: many}\n", r":2: `warmup.requests`: input should"),
        ("model: {path: /m}\nmodel: {path: /n}\n", ":2: `model` is given twice"),
        ("model: [\n", "not valid YAML"),
        ("model: &m {path: *m}\n", "`model.path`"),
        ("model: {path: /m}\nnodes: &n [*n]\n", ":2: `nodes.0`"),
        ("- a\n", "must be a mapping"),
        ("", "must be a mapping"),
        ("model: !!python/object/apply:os.system [true]\n", "not valid YAML"),
        ("a: 1\nmodel: {path: /m}\nb: 2\n", r":1: unknown key `a`.* \(and 1 more\)"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        load_deployment(write(tmp_path, text))
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    "line",
    [
        "engine_arguments: ['--hf-token=sesame', --model, x]",
        "engine_arguments: [--api-key, sesame]",
        "engine_arguments: [--api-key, 5354]",
        "engine_arguments: {hf_token: sesame}",
        "nodes: {api_keys: [sesame, open]}",
        "target: sk-sesame-sesame",
        "warmup: {requests: 'api_key=sesame'}",
        "gateway: {port: 'http://me:sesame@host'}",
        "replicas: [{url: 'http://me:sesame@host:1/x?token=sesame'}]",
        "sk-sesame-sesame: 1",
        "sk-sesame-sesame: 1\nsk-sesame-sesame: 2",
        "api_key: sesame: 1",
        "gateway: 'Authorization: Bearer sesame'",
    ],
)
def test_no_secret_is_in_a_message(tmp_path: Path, line: str) -> None:
    with pytest.raises(UsageError) as error:
        load_deployment(write(tmp_path, f"model: {{path: /m}}\n{line}\n"))
    assert "sesame" not in str(error.value)
    assert "5354" not in str(error.value)
    assert "***" in str(error.value)


def test_a_missing_file_and_a_binary_file_are_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load_deployment(tmp_path / "none.yaml")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        load_deployment(binary)
    with pytest.raises(UsageError, match="larger than 1 MiB"):
        load_deployment(Path("/dev/zero"))


def test_options_lie_on_top_of_the_file_and_none_changes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, "model: {path: /m}\ngateway: {port: 1}\n")
    options = {"gateway": {"port": 2, "host": None}, "warmup": {"requests": None}}
    deployment = load_deployment(path, options)
    assert deployment.gateway.port == 2
    assert deployment.gateway.host == "127.0.0.1"


_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(["name", "model", "memory", "parallel", "nodes", "gateway", "device_map"])
        | st.text(max_size=6),
        _anything,
    )
)
def test_no_input_raises_anything_but_a_usage_error(values: dict[str, object]) -> None:
    # Anything else that is raised fails the test.
    with contextlib.suppress(UsageError):
        deployment_from(values, "test")


def test_a_misspelt_key_is_named_before_the_key_it_leaves_missing(tmp_path: Path) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_text("model: {pth: /x}\n")
    with pytest.raises(UsageError, match=r"unknown key `model\.pth`; did you mean `path`\?"):
        load_deployment(file)
