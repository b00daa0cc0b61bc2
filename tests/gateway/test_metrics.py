"""What Prometheus reads."""

from tests.gateway.fake_engine import Trouble
from tests.gateway.fleet import CHAT, fleet
from tests.gateway.test_resume import body_for
from tunan.gateway.metrics import merged


async def test_a_resumed_stream_is_counted_with_its_stall() -> None:
    async with fleet() as door:
        door.engines[0].troubles = [Trouble("reset", 8)]
        assert (await door.ask(CHAT, body_for(CHAT, min_tokens=39))).done
        async with door.client.get(f"{door.url}/metrics") as answer:
            text = await answer.text()
        for line in (
            'tunan_gateway_losses_total{reason="reset",replica="replica-0"} 1.0',
            "tunan_gateway_resumed_streams_total 1.0",
            "tunan_gateway_stall_seconds_count 1.0",
            "tunan_gateway_ttft_seconds_count 1.0",
            'tunan_gateway_requests_total{key="anybody",status="200"} 1.0',
            'tunan_gateway_replica_ready{replica="replica-1",role="active"} 1.0',
            'tunan_gateway_replica_in_flight{replica="replica-1",role="active"} 0.0',
        ):
            assert line in text
        assert "tunan_gateway_reprefilled_tokens_total 0.0" not in text
        # The replicas' own, each with its name.
        assert 'vllm:x{replica="replica-1",a="b"} 1.0' in text
        assert 'vllm:y{replica="replica-1"} 2.0' in text


async def test_a_broken_stream_is_counted() -> None:
    async with fleet(resume=False) as door:
        door.engines[0].troubles = [Trouble("reset", 3)]
        await door.ask(CHAT, body_for(CHAT))
        await door.until_shown("tunan_gateway_broken_streams_total 1.0")


def test_the_samples_of_a_metric_stay_in_one_place() -> None:
    text = "# HELP m what\n# TYPE m gauge\nm 1\n# HELP n x\n# TYPE n counter\nn_total 2\n"
    assert merged({"a": text, "b": text}).decode().splitlines() == [
        "# HELP m what",
        "# TYPE m gauge",
        'm{replica="a"} 1',
        'm{replica="b"} 1',
        "# HELP n x",
        "# TYPE n counter",
        'n_total{replica="a"} 2',
        'n_total{replica="b"} 2',
    ]
