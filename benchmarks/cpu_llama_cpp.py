"""llama.cpp behind the same questions as benchmarks/cpu_engine.py.

    python cpu_llama_cpp.py FD JSON

Runs in an environment of its own that has llama-cpp-python and nothing of ours. JSON:
{"model": GGUF file, "threads"}.
"""

import importlib
import json
import random
import resource
import socket
import sys
import time
from typing import Any

CONTEXT = 16384
CHUNK = 512
SEQUENCES = 32


class LlamaCpp:
    """A context of llama.cpp with up to 32 sequences; the next token is the most likely one."""

    def __init__(self, model: str, threads: int) -> None:
        llama_cpp: Any = importlib.import_module("llama_cpp")
        self._api = llama_cpp
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            model.encode(), llama_cpp.llama_model_default_params()
        )
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_seq_max = CONTEXT, SEQUENCES
        settings.n_batch = settings.n_ubatch = CHUNK
        settings.n_threads = settings.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, settings)
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._size = int(llama_cpp.llama_vocab_n_tokens(vocabulary))
        self._batch = llama_cpp.llama_batch_init(CHUNK, 0, 1)
        self._random = random.Random(0)

    def decode(self, batch: int, context: int, tokens: int) -> float:
        """Seconds of `tokens` steps of `batch` sequences, after prompts of `context` tokens."""
        self._forget()
        last = [self._prompt(sequence, context) for sequence in range(batch)]
        started = time.perf_counter()
        for step in range(tokens):
            self._run([(token, context + step, s, True) for s, token in enumerate(last)])
            last = [self._best(index) for index in range(batch)]
        return time.perf_counter() - started

    def prefill(self, tokens: int) -> float:
        """Seconds to the only token of a prompt."""
        self._forget()
        started = time.perf_counter()
        self._prompt(0, tokens)
        return time.perf_counter() - started

    def _prompt(self, sequence: int, length: int) -> int:
        ids = [self._random.randrange(3, self._size) for _ in range(length)]
        for start in range(0, length, CHUNK):
            part = ids[start : start + CHUNK]
            self._run(
                [(t, start + i, sequence, start + i == length - 1) for i, t in enumerate(part)]
            )
        return self._best(len(part) - 1)

    def _run(self, entries: list[tuple[int, int, int, bool]]) -> None:
        batch = self._batch
        batch.n_tokens = len(entries)
        for index, (token, position, sequence, wanted) in enumerate(entries):
            batch.token[index], batch.pos[index] = token, position
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
            batch.logits[index] = wanted
        if self._api.llama_decode(self._context, batch):
            raise SystemExit("llama_decode failed")

    def _best(self, index: int) -> int:
        import numpy as np

        logits = self._api.llama_get_logits_ith(self._context, index)
        return int(np.ctypeslib.as_array(logits, (self._size,)).argmax())

    def _forget(self) -> None:
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context), True)


def main() -> None:
    """Answers until the other end is closed."""
    started = time.perf_counter()
    connection = socket.socket(fileno=int(sys.argv[1])).makefile("rw")
    engine = LlamaCpp(**json.loads(sys.argv[2]))
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
