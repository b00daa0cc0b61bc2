"""`tunan serve` up to the point where an engine would start."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models import write_llama
from tunan.cli.main import main


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    config = {"hidden_size": 64, "num_attention_heads": 1, "num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 128}))
    (folder / "model.safetensors").write_bytes(bytes(8))
    return folder


@pytest.fixture(autouse=True)
def own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_nothing_to_serve_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"]) == 2
    assert "name a checkpoint directory" in error_of(capsys)


def test_a_directory_that_is_not_there_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "/no/such/model"]) == 2
    assert "/no/such/model: no such checkpoint" in error_of(capsys)


def test_a_taken_port_is_an_outside_problem(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(checkpoint), "--port", str(port)]) == 3
    assert f"127.0.0.1:{port} is taken" in error_of(capsys)


def test_too_little_memory_is_an_outside_problem(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    length = 1 << 50
    assert main(["serve", str(checkpoint), "--port", "0", "--max-model-len", str(length)]) == 3
    assert "not enough memory" in error_of(capsys)


def test_a_truncated_block_is_found_before_the_engine_starts(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_llama(tmp_path / "source")
    converted = tmp_path / "converted"
    assert main(["convert", str(source), str(converted)]) == 0
    block = next(converted.glob("*.safetensors"))
    block.write_bytes(block.read_bytes()[:-1])
    capsys.readouterr()
    assert main(["serve", str(converted), "--port", "0", "--target", "cpu"]) == 1
    assert f"{block}: has {block.stat().st_size} bytes, tunan.json says" in error_of(capsys)


def test_sigterm_before_the_engine_is_started_ends_with_status_0(
    checkpoint: Path, tmp_path: Path
) -> None:
    """A named pipe for the configuration holds it there."""
    os.mkfifo(tmp_path / "deploy.yaml")
    command = [sys.executable, "-m", "tunan", "serve", "--config", str(tmp_path / "deploy.yaml")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        # Opening the pipe for writing waits for the reader, which is then in its verb.
        with (tmp_path / "deploy.yaml").open("w"):
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_an_npu_that_is_not_there_is_an_outside_problem(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(checkpoint), "--target", "ascend910b"]) == 3
    assert "lacks: " in error_of(capsys)


def test_several_machines_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    config = tmp_path / "deploy.yaml"
    config.write_text(f"model: {{path: {checkpoint}}}\nnodes: [a, b]\ntarget: cpu\n")
    assert main(["serve", "--config", str(config)]) == 2


def test_options_and_engine_flags_lie_on_top_of_the_file(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "deploy.yaml"
    config.write_text("model: {path: /elsewhere, max_model_len: 64}\ntarget: cpu\n")
    arguments = ["--config", str(config), "--dtype", "float32", "--print-command", "--json"]
    assert main(["serve", str(checkpoint), *arguments, "--", "--seed", "7"]) == 0
    (node,) = json.loads(capsys.readouterr().out)["nodes"]
    assert node["command"][1:4] == ["-P", "-m", "tunan.engine.launcher"]
    assert f"--model={checkpoint}" in node["command"]
    assert "--max-model-len=64" in node["command"]
    assert "--dtype=float32" in node["command"]
    assert node["command"][-2:] == ["--seed", "7"]


def test_the_printed_command_of_a_cpu_has_a_private_directory_as_a_run_has(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(checkpoint), "--target", "cpu", "--print-command"]) == 0
    script = capsys.readouterr().out
    lines = script.splitlines()
    assert lines[1].startswith("RUN=$(mktemp -d ")
    assert 'export TMPDIR="$RUN"' in lines
    assert 'export TUNAN_PROGRESS_SOCKET="$RUN"/progress.sock' in lines
    assert '--uds="$RUN"/engine.sock' in script
    # Up to the command itself it can be run.
    setup = "\n".join(line for line in lines if line.startswith(("RUN", "export")))
    shown = subprocess.run(
        ["bash", "-euc", setup + '\necho "$TMPDIR"; rmdir "$RUN"'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.startswith("/tmp/tunan-")


def test_each_replica_has_a_command_with_its_share(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = ["serve", str(checkpoint), "--target", "cpu", "--print-command", "--json"]
    assert main([*one, "--replicas", "1", "--standby", "1"]) == 0
    active, standby = json.loads(capsys.readouterr().out)["nodes"]
    assert active["command"] == standby["command"]
    npu = ["serve", str(checkpoint), "--target", "ascend910b", "--print-command", "--json"]
    assert main([*npu, "--replicas", "2"]) == 0
    nodes = json.loads(capsys.readouterr().out)["nodes"]
    devices = [node["environment"]["ASCEND_RT_VISIBLE_DEVICES"] for node in nodes]
    ports = [word for node in nodes for word in node["command"] if word.startswith("--port=")]
    assert (devices, ports) == (["0", "1"], ["--port=8080", "--port=8081"])


@pytest.mark.parametrize("printing", [[], ["--print-command"]])
def test_more_replicas_than_the_machine_has_cores_are_wrong_use(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], printing: list[str]
) -> None:
    arguments = ["--port", "0", "--target", "cpu", "--replicas", "5000", *printing]
    assert main(["serve", str(checkpoint), *arguments]) == 2
    assert "5000 active replicas need a core each" in error_of(capsys)


def test_no_command_is_printed_where_every_engine_is_elsewhere(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "deploy.yaml"
    config.write_text(f"model: {{path: {checkpoint}}}\nreplicas: [{{url: 'http://host:8000'}}]\n")
    assert main(["serve", "--config", str(config), "--print-command"]) == 2
    assert "all are elsewhere" in error_of(capsys)


def test_a_command_for_a_checkpoint_that_is_elsewhere_says_what_it_cannot_know(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "/models/elsewhere", "--target", "ascend910b", "--print-command"]) == 0
    assert "add --load-format=tunan if it is a converted one" in capsys.readouterr().err
    assert main(["serve", str(checkpoint), "--target", "ascend910b", "--print-command"]) == 0
    assert capsys.readouterr().err == ""


def test_the_printed_script_is_valid_shell(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--target", "ascend910c", "--tensor-parallel-size", "16", "--print-command"]
    assert main(["serve", "/models/with space", *arguments]) == 0
    script = capsys.readouterr().out
    assert "'/models/with space'" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


TWO = "target: ascend910b3\nmodel: {path: /models/r1}\nparallel: {tensor: 8, pipeline: 2}\n"


def test_one_machines_script_can_be_printed_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "deploy.yaml"
    config.write_text(f"{TWO}nodes: [10.0.0.1, 10.0.0.2]\n")
    command = ["serve", "--config", str(config), "--print-command"]
    assert main([*command, "--node", "1"]) == 0
    script = capsys.readouterr().out
    assert script.startswith("# ascend910b3, on 10.0.0.2\n")
    assert script.count("vllm serve") == 1
    # The shell becomes the engine, which so gets the signals.
    assert "\nexec vllm serve /models/r1 " in script
    assert main([*command, "--node", "0", "--json"]) == 0
    (node,) = json.loads(capsys.readouterr().out)["nodes"]
    assert node["node"] == "10.0.0.1"


def test_the_only_machine_is_node_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "deploy.yaml"
    config.write_text(TWO)
    command = ["serve", "--config", str(config), "--print-command"]
    assert main([*command, "--node", "0"]) == 0
    script = capsys.readouterr().out
    assert "\nexec vllm serve /models/r1 " in script
    assert main(command) == 0
    assert capsys.readouterr().out == script.replace("\nexec vllm", "\nvllm")


def test_the_scripts_of_two_engines_on_node_0_do_not_replace_their_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "deploy.yaml"
    config.write_text(f"{TWO}replicas: {{count: 2}}\n".replace("8, pipeline: 2", "8"))
    assert main(["serve", "--config", str(config), "--print-command", "--node", "0"]) == 0
    script = capsys.readouterr().out
    assert script.count("vllm serve /models/r1 ") == 2
    assert "exec vllm" not in script


def test_a_machine_that_is_named_is_looked_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "deploy.yaml"
    config.write_text(f"{TWO}nodes: [localhost, other]\n")
    assert main(["serve", "--config", str(config), "--print-command", "--node", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 'export HCCL_IF_IP="$ADDRESS"' in lines
    start = next(i for i, line in enumerate(lines) if "getent" in line) - 1
    end = next(i for i, line in enumerate(lines) if "nothing is called localhost" in line)
    looking = "\n".join([*lines[start : end + 1], 'echo "$ADDRESS"'])
    found = subprocess.run(["bash", "-euc", looking], capture_output=True, text=True, check=True)
    assert found.stdout == "127.0.0.1\n"


@pytest.mark.parametrize(
    ("nodes", "number", "complaint"),
    [
        ("[10.0.0.1, 10.0.0.2]", "2", "there are nodes 0 to 1"),
        ("[10.0.0.1, 10.0.0.2]", "-1", "there are nodes 0 to 1"),
        ("[]", "1", "names no `nodes`; 0 is the only one"),
        ("[]", "-1", "names no `nodes`; 0 is the only one"),
    ],
)
def test_a_machine_that_the_deployment_does_not_have_is_wrong_use(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    nodes: str,
    number: str,
    complaint: str,
) -> None:
    config = tmp_path / "deploy.yaml"
    config.write_text(f"{TWO}nodes: {nodes}\n")
    command = ["serve", "--config", str(config), "--print-command", "--node", number]
    assert main(command) == 2
    assert complaint in capsys.readouterr().err


def test_a_node_is_only_printed(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(checkpoint), "--node", "0"]) == 2
    assert "--node goes with --print-command" in error_of(capsys)


def test_a_printed_script_stops_where_cann_is_missing(tmp_path: Path) -> None:
    model = tmp_path / "somewhere" / "model"
    command = [sys.executable, "-m", "tunan", "serve", "somewhere/model", "--print-command"]
    done = subprocess.run(
        [*command, "--target", "ascend910b"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert f"vllm serve {model} " in done.stdout
    # A CANN that is nowhere, for the machine that has one.
    script = done.stdout.replace("/usr/local/Ascend", f"{tmp_path}/no")
    ran = subprocess.run(["sh"], input=script, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (3, "")
    (line,) = ran.stderr.splitlines()
    tried = f"no {tmp_path}/no/cann/set_env.sh and no {tmp_path}/no/ascend-toolkit/set_env.sh"
    assert line.startswith(f"{tried}: install CANN")


@pytest.mark.parametrize("folders", [["cann"], ["ascend-toolkit"], ["cann", "ascend-toolkit"]])
def test_a_printed_script_takes_the_cann_that_is_there(
    folders: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in folders:
        script = tmp_path / folder / "set_env.sh"
        script.parent.mkdir()
        script.write_text(f"echo {folder}; exit 0\n")
    assert main(["serve", "/models/m", "--print-command", "--target", "ascend910b4-1"]) == 0
    printed = capsys.readouterr().out.replace("/usr/local/Ascend", str(tmp_path))
    ran = subprocess.run(["sh"], input=printed, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, f"{folders[0]}\n")


@pytest.mark.parametrize("printing", [[], ["--print-command"]])
@pytest.mark.parametrize(
    ("target", "config", "complaint"),
    [
        ("ascend310p", {"kv_lora_rank": 512}, "no multi-head latent attention"),
        ("ascend910b", {"quantization_config": {"quant_method": "fp8"}}, "tunan convert"),
        ("ascend910b", {"num_attention_heads": 3}, "3 attention heads"),
        ("cpu", {"num_attention_heads": 3}, "3 attention heads"),
    ],
)
def test_what_the_checkpoint_rules_out_is_said_before_any_start(
    checkpoint: Path,
    capsys: pytest.CaptureFixture[str],
    printing: list[str],
    target: str,
    config: dict[str, object],
    complaint: str,
) -> None:
    file = checkpoint / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_attention_heads": 2} | config))
    arguments = ["--target", target, "--tensor-parallel-size", "2", *printing]
    assert main(["serve", str(checkpoint), *arguments]) == 2
    assert complaint in error_of(capsys)


@pytest.mark.parametrize("printing", [[], ["--print-command"]])
def test_a_cache_larger_than_the_machine_is_wrong_use(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], printing: list[str]
) -> None:
    arguments = ["--port", "0", "--target", "cpu", "--kv-cache-gib", "1000000", *printing]
    assert main(["serve", str(checkpoint), *arguments]) == 2
    assert "1e+06 GiB is more than the" in error_of(capsys)


def test_engine_flags_after_another_verb_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["config", "schema", "--", "--seed"])


def test_serving_to_the_network_without_keys_warns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "/no/such/model", "--host", "0.0.0.0"]) == 2
    assert "without API keys: ANYONE who reaches port 8080 can" in capsys.readouterr().err
    assert main(["serve", "/no/such/model", "--host", "0.0.0.0", "--port", "0"]) == 2
    assert "ANYONE who reaches the port that it takes can" in capsys.readouterr().err


def test_the_supervisor_imports_neither_torch_nor_vllm() -> None:
    code = (
        "import sys; import tunan.supervisor.service, tunan.supervisor.print_command, "
        "tunan.cli.serve, tunan.ascend.target; "
        "sys.exit(bool({'torch', 'vllm', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
