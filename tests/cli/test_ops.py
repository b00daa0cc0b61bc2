"""`tunan ops audit`: status, table, JSON, and one line for wrong input."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import models
from tunan.cli.main import main


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return models.write_llama(tmp_path / "llama", num_hidden_layers=2)


def _json(capsys: Any) -> Any:
    return json.loads(capsys.readouterr().out)


def test_a_model_that_fits_gives_a_table_and_status_0(
    llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ops", "audit", str(llama), "--prompt-tokens", "4"]) == 0
    out = capsys.readouterr().out
    assert "npu_rms_norm" in out
    assert "on the host's cores: tokenisation" in out


def test_a_bare_configuration_is_enough(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["ops", "audit", str(llama / "config.json"), "--json", "--batch", "2"]
    assert main([*command, "--prompt-tokens", "4", "--torch-npu", "2.13.0"]) == 0
    content = _json(capsys)
    assert content["options"]["batch"] == 2
    assert content["per_step"]["prefill"]["bytes"] == 8 * (2 * 4 + 2)


def test_a_dtype_the_chip_lacks_gives_status_1_and_the_way_out(
    llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["ops", "audit", str(llama), "--target", "ascend310p"]
    assert main([*command, "--dtype", "float32"]) == 1
    assert "use --dtype float16" in capsys.readouterr().out
    assert main(command) == 0
    assert "float16, torch_npu" in capsys.readouterr().out


def test_replacing_is_reported(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "audit", str(llama), "--replace", "--json", "--prompt-tokens", "4"]) == 0
    replaced = _json(capsys)["replacements"]["replaced"]
    assert {"npu::npu_rms_norm", "npu::npu_swiglu", "npu::npu_rotary_mul"} == {
        entry["operator"] for entry in replaced
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "ascend999"], "unknown target 'ascend999'"),
        (["--torch-npu", "1.8"], "no operator list of torch_npu 1.8"),
        (["--prompt-tokens", "2048"], "2048 positions"),
    ],
)
def test_wrong_options_are_one_line_and_status_2(
    llama: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["ops", "audit", str(llama), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_directory_without_a_configuration_is_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ops", "audit", str(tmp_path)]) == 2
    assert "no config.json there" in capsys.readouterr().err


def test_an_architecture_without_modelling_code_is_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"architectures": ["DeepseekV32ForCausalLM"], "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["ops", "audit", str(tmp_path)]) == 2
    assert "DeepseekV32ForCausalLM" in capsys.readouterr().err


def test_fp8_weights_give_status_1_and_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = models.write_deepseek_v3(tmp_path, fp8=True)
    assert main(["ops", "audit", str(model), "--prompt-tokens", "4"]) == 1
    out = capsys.readouterr().out
    assert "FP8 weights have no kernels" in out
    assert "tunan convert" in out


def test_modelslims_description_beside_the_configuration_is_read(
    llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    described = {"model.layers.0.self_attn.o_proj.weight": "W8A8_DYNAMIC"}
    (llama / "quant_model_description.json").write_text(json.dumps(described))
    assert main(["ops", "audit", str(llama), "--prompt-tokens", "4"]) == 0
    out = capsys.readouterr().out
    assert "npu_quant_matmul" in out
    assert "quant_model_description.json" in out.splitlines()[2]


_WRONG = """
import sys
from tunan.cli.main import main
status = main(["ops", "audit", sys.argv[1]])
assert "torch" not in sys.modules and "transformers" not in sys.modules
sys.exit(status)
"""


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (None, 2),
        ("not json", 1),
        ('{"architectures": ["GptForCausalLM"]}', 2),
        ('{"architectures": ["DeepseekV32ForCausalLM"]}', 2),
        ('{"architectures": ["DeepseekForCausalLM"]}', 2),
        ('{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 0}', 1),
    ],
)
def test_wrong_input_is_found_before_torch_is_imported(
    tmp_path: Path, content: str | None, status: int
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    done = subprocess.run(
        [sys.executable, "-c", _WRONG, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (status, "")
    assert len(done.stderr.splitlines()) == 1
