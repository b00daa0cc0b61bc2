"""One engine that answers the questions of benchmarks/cpu.py.

    python -m benchmarks.cpu_engine FD JSON

FD is a connected socket, JSON the arguments of vLLM's `LLM`. It loads, says {"ready": seconds},
and then answers {"kind": "decode", "batch", "context", "tokens"} and {"kind": "prefill",
"tokens"} with the seconds that took. In process: no HTTP, no second process.
"""

import json
import random
import resource
import socket
import sys
import time
from typing import Any


class Engine:
    """vLLM's engine, driven step by step."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        from vllm import LLM

        self._engine = LLM(**arguments).llm_engine
        self._vocabulary = self._engine.vllm_config.model_config.get_vocab_size()
        self._random = random.Random(0)
        self._requests = 0

    def decode(self, batch: int, context: int, tokens: int) -> float:
        """Seconds of `tokens` steps of `batch` sequences, after prompts of `context` tokens."""
        for _ in range(batch):
            self._add(context, tokens + 1)
        produced: set[str] = set()
        while len(produced) < batch:
            produced |= {o.request_id for o in self._engine.step() if o.outputs[0].token_ids}
        started = time.perf_counter()
        while self._engine.has_unfinished_requests():
            self._engine.step()
        return time.perf_counter() - started

    def prefill(self, tokens: int) -> float:
        """Seconds to the only token of a prompt that no cache has seen."""
        self._add(tokens, 1)
        started = time.perf_counter()
        while self._engine.has_unfinished_requests():
            self._engine.step()
        return time.perf_counter() - started

    def _add(self, context: int, tokens: int) -> None:
        from vllm import SamplingParams

        prompt = [self._random.randrange(3, self._vocabulary) for _ in range(context)]
        sampling = SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        self._requests += 1
        self._engine.add_request(str(self._requests), {"prompt_token_ids": prompt}, sampling)


def main() -> None:
    """Answers until the other end is closed."""
    started = time.perf_counter()
    connection = socket.socket(fileno=int(sys.argv[1])).makefile("rw")
    engine = Engine(json.loads(sys.argv[2]))
    _say(connection, {"ready": time.perf_counter() - started})
    for line in connection:
        question = json.loads(line)
        answer = getattr(engine, question.pop("kind"))(**question)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        _say(connection, {"seconds": answer, "peak_bytes": peak})


def _say(connection: Any, message: dict[str, Any]) -> None:
    connection.write(json.dumps(message) + "\n")
    connection.flush()


if __name__ == "__main__":
    main()
