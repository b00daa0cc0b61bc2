"""Two replicas on emulated devices: one dies of a fault, its streams go on at the other."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ascend.served import serving_emulated
from tests.ascend.streams import streaming
from tests.models import write_decided_llama
from tests.serving import Served
from tunan.cli.main import main

pytestmark = pytest.mark.ascend

PROMPTS = [[5, 7, 11, 13], [2, 40, 9], [300, 401, 3, 8, 1], [77]]
LENGTH = 300
# Tokens that each stream has when the device fails.
BEGUN = 20


@dataclass(frozen=True)
class Pair:
    """Two replicas; the devices of the second one fail while a fault's file is there."""

    served: Served
    folder: Path

    def events_until(self, name: str) -> dict[str, Any]:
        """The next event `name` of the replica whose devices fail."""
        while (event := self.served.wait_for(name)).get("replica") != "replica-1":
            pass
        return event

    def resumed(self) -> float:
        """How many streams have gone on at another replica."""
        metrics = self.served.ask("/metrics").body.decode()
        found = re.search(r"^tunan_gateway_resumed_streams_total (\S+)$", metrics, re.MULTILINE)
        assert found
        return float(found[1])


@contextmanager
def pair(folder: Path, *kinds: str, ranks: int = 1, **environment: str) -> Iterator[Pair]:
    """Ready replicas of `ranks` devices each, and undisturbed so far."""
    source = write_decided_llama(folder / "source")
    model = folder / "converted"
    assert main(["convert", str(source), str(model), "--target", "ascend910b"]) == 0
    config = folder / "deploy.yaml"
    settings = {
        "model": {"path": str(model)},
        "parallel": {"tensor": ranks},
        "replicas": {"count": 2},
        "warmup": {"requests": 1},
        # The fault is to end the engine, not the gateway's patience with a replica that is silent.
        "gateway": {"stall_s": 60},
    }
    config.write_text(json.dumps(settings))
    faults = ";".join(f"{kind},device={ranks},while={folder / name_of(kind)}" for kind in kinds)
    with serving_emulated(
        model,
        folder,
        "--config",
        str(config),
        devices=2 * ranks,
        faults=faults,
        environment=environment,
    ) as served:
        two = Pair(served, folder)
        two.events_until("ready")
        yield two


def name_of(fault: str) -> str:
    return fault.partition(":")[0]


def dies_of(two: Pair, kind: str, expected: list[list[int]]) -> str:
    """Breaks the second replica's device under running streams, mends it when the engine is dead.

    Returns what `serve` names as the cause.
    """
    before, fault = two.resumed(), two.folder / kind
    with streaming(two.served, PROMPTS, LENGTH) as streams:
        streams.wait_for(BEGUN)
        fault.touch()
        if kind == "oom":
            long_prompts(two.served)
        assert streams.tokens() == expected
    cause = str(two.events_until("restarting")["cause"])
    assert two.resumed() > before
    fault.unlink()
    return cause


def long_prompts(served: Served) -> None:
    """Requests that make a step larger than any before, for which a device needs more memory."""
    with ThreadPoolExecutor(8) as pool:
        prompts = [[number, *range(2, 480)] for number in range(2, 10)]
        answers = pool.map(lambda prompt: served.complete(prompt=prompt, max_tokens=1), prompts)
        assert [answer.status for answer in answers] == [200] * len(prompts)


def undisturbed(two: Pair) -> list[list[int]]:
    """The tokens of the streams when nothing fails."""
    with streaming(two.served, PROMPTS, LENGTH) as streams:
        tokens = streams.tokens()
    assert [len(of_stream) for of_stream in tokens] == [LENGTH] * len(PROMPTS)
    return tokens


def test_streams_of_a_device_that_fails_go_on_at_the_other(tmp_path: Path) -> None:
    """Of one that runs out of memory and, when its replica is back, of one that is lost."""
    with pair(tmp_path, "oom:bytes=1M", "lost:after=0") as two:
        expected = undisturbed(two)
        assert "NPU out of memory. Tried to allocate" in dies_of(two, "oom", expected)
        two.events_until("ready")
        assert "ts lost heartbeat" in dies_of(two, "lost", expected)


@pytest.mark.long
def test_streams_whose_collective_times_out_go_on_at_the_other(tmp_path: Path) -> None:
    """Two replicas of two devices each."""
    with pair(tmp_path, "hccl-timeout:after=0", ranks=2, HCCL_EXEC_TIMEOUT="5") as two:
        expected = undisturbed(two)
        cause = dies_of(two, "hccl-timeout", expected)
        assert "The wait execution of the Notify register times out" in cause
        two.events_until("ready")
        assert undisturbed(two) == expected
