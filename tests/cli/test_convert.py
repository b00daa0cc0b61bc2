"""`tunan convert` as a user meets it."""

import argparse
import json
import os
import re
from argparse import Namespace
from pathlib import Path

import pytest

from tests.models import write_llama
from tunan.checkpoint.manifest import Manifest
from tunan.cli import convert as verb
from tunan.cli.main import main
from tunan.errors import CheckFailedError, UsageError


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("cli") / "source")


def run(*words: object) -> int:
    """Parses and runs the verb alone."""
    parser = argparse.ArgumentParser()
    verb.register(parser.add_subparsers())
    args = parser.parse_args(["convert", *map(str, words)])
    return int(args.run(args))


def test_a_conversion_prints_operators_and_rate(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(source, tmp_path / "out", "--target", "ascend910b") == 0
    out = capsys.readouterr().out
    assert "npu_fused_infer_attention_score" in out
    assert "no fused operator: VocabParallelEmbedding" in out
    assert "GB/s" in out.splitlines()[-1]
    assert (tmp_path / "out/tunan.json").is_file()


def test_json_is_the_manifest_and_more(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--json", "--name", "小模型", "--max-batch-size", "4", "--tensor-parallel", "2")
    assert run(source, tmp_path / "out", *options) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["model_name"], content["max_batch_size"]) == ("小模型", 4)
    assert content["tensor_parallel_degree"] == 2
    assert content["reused_blocks"] == 0


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_dry_run_writes_nothing(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: tuple[str, ...]
) -> None:
    assert run(source, tmp_path / "out", "--dry-run", "--block-size", "1", *form) == 0
    out = capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    assert "model-00001-of-0000" in out
    assert "onednn_mm" in out
    if form:
        assert json.loads(out)["bytes"] > 0
    else:
        assert "nothing was written" in out.splitlines()[-1]


def test_overwrite_replaces_a_converted_checkpoint(source: Path, tmp_path: Path) -> None:
    run(source, tmp_path / "out")
    with pytest.raises(UsageError, match="--overwrite"):
        run(source, tmp_path / "out")
    run(source, tmp_path / "out", "--dtype", "float32", "--overwrite")
    assert json.loads((tmp_path / "out/tunan.json").read_bytes())["precision"] == "fp32"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_interrupt_is_one_line_and_status_130(
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tunan.cli.convert._ConvertProgress.advance", interrupt)
    assert run(source, tmp_path / "out") == 130
    assert "run the same command again to continue" in capsys.readouterr().err


def test_a_continued_run_says_how_much_was_there(
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = 0

    def interrupt(progress: object, count: int) -> None:
        nonlocal done
        done += count
        if done > 3_000_000:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tunan.cli.convert._ConvertProgress.advance", interrupt)
        run(source, tmp_path / "out", "--block-size", "1", "--workers", "1")
    capsys.readouterr()
    assert run(source, tmp_path / "out", "--block-size", "1", "--workers", "1") == 0
    assert "blocks were finished by an earlier run" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["0", "-1", "x", "1.5"])
def test_sizes_are_whole_numbers_above_zero(
    tmp_path: Path, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run("source", tmp_path / "out", f"--tensor-parallel-size={value}")
    assert "not a whole number above 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        (("missing", "out"), 2, "missing: no such file or directory"),
        (("source", "out", "--tensor-parallel-size", "3"), 2, "sizes that do: 1, 2, 4"),
        (("source", "source/out"), 2, "overlap"),
        (("truncated", "out"), 1, "truncated"),
    ],
)
def test_mistakes_are_one_line_and_a_status(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    status: int,
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("source", "truncated"):
        write_llama(tmp_path / name)
    shard = next((tmp_path / "truncated").glob("*.safetensors"))
    os.truncate(shard, shard.stat().st_size - 1)
    assert main(["convert", *words]) == status
    (printed,) = capsys.readouterr().err.splitlines()
    assert line in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "truncated"]


def test_a_dry_run_says_that_the_disk_is_too_small(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: Namespace(free=1 << 20))
    with pytest.raises(CheckFailedError, match="more are needed"):
        run(source, tmp_path / "out", "--dry-run")


def test_a_config_beside_a_gguf_is_wrong_use(source: Path, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(UsageError, match="for single state-dict files only"):
        run(tmp_path / "m.gguf", tmp_path / "out", "--config", source / "config.json")


def test_a_quantised_conversion_prints_its_worst_weights(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(source, tmp_path / "out", "--quantize", "w8a8", "--no-report") == 0
    out = capsys.readouterr().out
    assert "w8a8: 21 weights, int8, symmetric, one scale for each output channel" in out
    assert "worst weight" in out


def test_fitted_weights_and_cache_are_found_on_the_text_given(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "own.txt"
    text.write_text("Its back measures who knows how many thousand li. " * 9)
    cache = ("--target", "ascend910b", "--kv", "int8", "--no-report")
    words = ("--quantize", "w8a8", "--method", "fitted", "--calibrate", text, *cache)
    assert run(source, tmp_path / "out", *words) == 0
    output = capsys.readouterr()
    assert "smoothed, rounded by GPTQ on own.txt" in output.out
    assert "running the model on own.txt to smooth and round its weights" in output.err


def test_the_quality_of_a_small_model_is_measured_unasked(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(source, tmp_path / "out", "--quantize", "w4a8", "--group-size", "64") == 0
    said = capsys.readouterr().out
    assert "tokens of the text shipped with Tunan for measuring: perplexity" in said
    assert re.search(r"before \([+-]\d+\.\d\d% ± \d+\.\d\d%\)", said)


def test_the_quality_is_measured_on_as_many_tokens_as_asked(source: Path, tmp_path: Path) -> None:
    options = ("--quantize", "w8a8", "--report-tokens", "600")
    assert run(source, tmp_path / "out", *options) == 0
    quality = Manifest.read(tmp_path / "out").quality
    assert quality is not None
    assert quality.tokens == 598  # two windows, each without its first token


def test_a_rotated_checkpoint_says_so(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "own.txt"
    text.write_text("Its back measures who knows how many thousand li. " * 9)
    words = ("--quantize", "w8a8", "--method", "fitted", "--rotate", "--calibrate", text)
    assert run(source, tmp_path / "out", *words, "--no-report") == 0
    assert "rotated, smoothed, rounded by GPTQ on own.txt" in capsys.readouterr().out


FITTED_W8A8 = ("--quantize", "w8a8", "--method", "fitted")
FITTED_W4A8 = ("--quantize", "w4a8", "--method", "fitted")


def test_a_mixed_checkpoint_says_how_many_layers_are_in_int8(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "own.txt"
    text.write_text("Its back measures who knows how many thousand li. " * 9)
    words = (*FITTED_W4A8, "--average-bits", "6", "--calibrate", text)
    assert run(source, tmp_path / "out", *words, "--no-report") == 0
    assert "layers in int8, up to 6 bits a weight" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--clipping", "none"), "--clipping is for quantised weights"),
        (("--group-size", "64"), "--group-size is for quantised weights"),
        (("--quantize", "w8a8", "--group-size", "64"), "no groups"),
        (("--quantize", "w4a8", "--group-size", "128"), None),
        (("--quantize", "w4a8", "--target", "ascend910b"), "for Ascend use w8a8"),
        (("--quantize", "w8a8", "--target", "ascend310p"), "leave --quantize out"),
        (("--calibrate", "text"), "--calibrate is for an int8 cache and fitted weights"),
        (("--method", "fitted"), "--method is for quantised weights"),
        (("--quantize", "w8a8", "--rotate"), "--rotate is for fitted weights"),
        (("--average-bits", "6"), "--average-bits is for quantised weights"),
        ((*FITTED_W8A8, "--average-bits", "6"), "w8a8 is int8 throughout"),
        (("--quantize", "w4a8", "--average-bits", "6"), "give --method fitted too"),
        ((*FITTED_W4A8, "--average-bits", "4.5"), "takes 4.5 with its scales"),
        ((*FITTED_W4A8, "--average-bits", "8"), "give a number between"),
        ((*FITTED_W4A8, "--average-bits", "nan"), "give a number between"),
        ((*FITTED_W4A8, "--group-size", "128", "--average-bits", "4.2"), None),
        (("--kv", "int8"), "not for --target cpu"),
        (("--kv", "int8", "--calibrate", "text"), "text: no such file"),
        (("--kv", "int8", "--calibrate", "/"), "/: is a directory"),
        ((*FITTED_W8A8, "--calibrate", "/dev/null"), "/dev/null: is no regular file"),
        (("--report",), "--report is for what quantising costs"),
        (("--report-tokens", "5"), "--report-tokens is for what quantising costs"),
        (("--quantize", "w8a8", "--no-report", "--report-tokens", "5"), "--no-report makes no"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    source: Path, tmp_path: Path, options: tuple[str, ...], message: str | None
) -> None:
    if message is None:
        assert run(source, tmp_path / "out", "--dry-run", *options) == 0
        return
    with pytest.raises(UsageError, match=message):
        run(source, tmp_path / "out", *options)


def test_a_text_that_shows_nothing_is_refused_before_the_model_runs(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunan.checkpoint.quantize.running.run_source", None)
    text = tmp_path / "own.txt"
    text.write_bytes(b"ab")
    with pytest.raises(CheckFailedError, match=r"own\.txt: 2 letters and digits .* at least 128"):
        run(source, tmp_path / "out", *FITTED_W8A8, "--calibrate", text)


def test_more_tokens_than_the_text_has_are_said_to_be_fewer(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "tunan.checkpoint.quantize.report.measured_text", lambda: "who knows how many " * 9
        )
        options = ("--quantize", "w8a8", "--report-tokens", "100000")
        assert run(source, tmp_path / "out", *options) == 0
    said = capsys.readouterr().err
    quality = Manifest.read(tmp_path / "out").quality
    assert quality is not None
    found = re.search(r"--report-tokens 100000: the shipped text has (\d+) tokens", said)
    assert found is not None
    assert quality.tokens == int(found[1]) - 1


def test_tokens_of_a_report_that_is_not_made_are_said_to_be_unused(
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tunan.checkpoint.convert.is_worth_it", lambda source: False)
    assert run(source, tmp_path / "out", "--quantize", "w8a8", "--report-tokens", "600") == 0
    assert "--report-tokens is not used" in capsys.readouterr().err


@pytest.mark.parametrize("parent", ["/proc", "/sys"])
def test_where_nothing_can_be_made_is_status_3_and_says_to_choose_another_place(
    source: Path, parent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(source), f"{parent}/tunan-out"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "choose another directory" in line
    assert "kept" not in line


def test_an_activation_that_vllm_refuses_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_llama(tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"hidden_act": "gelu"}))
    assert run(source, tmp_path / "out", "--dry-run") == 0
    assert "hidden_act is gelu: vLLM runs this architecture with silu only" in (
        capsys.readouterr().err
    )


def test_the_table_of_a_quantised_model_names_our_kernels(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(source, tmp_path / "out", "--quantize", "w4a8", "--dry-run") == 0
    out = capsys.readouterr().out
    assert re.search(r"Linear \(W4A8\) +12 +tunan_decoder_layer +yes", out)
    assert "no fused operator: VocabParallelEmbedding, LogitsProcessor" in out
