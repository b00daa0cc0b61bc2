"""How often the cause is named rightly, over all examples and over errors that are not known."""

import io
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.diagnosis.noise import Log, failed, noted, quiet_log
from tunan.diagnosis import Diagnosis, diagnose_streams
from tunan.diagnosis.knowledge import knowledge

# Errors that no entry is about: a name for one of these would be wrong.
UNKNOWN = (
    "KeyError: 'request-77'",
    "AssertionError: hidden size is odd",
    "IndexError: list index out of range",
    "ValueError: cannot reshape array of size 12 into shape (5, 3)",
    "TypeError: forward() got an unexpected keyword argument 'kv'",
    "RuntimeError: The size of tensor a (64) must match the size of tensor b (96)",
    "AttributeError: 'NoneType' object has no attribute 'shape'",
    "ZeroDivisionError: division by zero",
    "FileNotFoundError: [Errno 2] No such file or directory: '/models/r1/tokenizer.json'",
    "PermissionError: [Errno 13] Permission denied: '/var/lib/x'",
    "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0",
    "RecursionError: maximum recursion depth exceeded",
    "torch._dynamo.exc.Unsupported: call_method UserDefinedObjectVariable",
    "RuntimeError: expected scalar type Half but found Float",
    "NotImplementedError: rope scaling of type 'spiral'",
    "ConnectionRefusedError: [Errno 111] Connection refused",
    "zmq.error.ZMQError: Operation cannot be accomplished in current state",
    "RuntimeError: CUDA driver version is insufficient",
    "ModuleNotFoundError: No module named 'fastapi'",
    "ImportError: cannot import name 'Foo' from 'bar'",
    "jinja2.exceptions.TemplateSyntaxError: unexpected '}'",
    "ValueError: chat template is missing",
    "OverflowError: int too large to convert to float",
    "msgspec.ValidationError: Object missing required field `x`",
)
SEEDS = (1, 2, 3)


@dataclass
class Accuracy:
    """Counts over logs. `wrong`: for each miss what it was and what was said."""

    known_logs: int = 0
    named: int = 0
    right: int = 0
    first_rank_logs: int = 0
    first_rank_right: int = 0
    unknown_logs: int = 0
    wrong: list[tuple[str, str]] = field(default_factory=list)

    @property
    def precision(self) -> float:
        """Of the causes named, how many are right."""
        return self.right / self.named

    @property
    def recall(self) -> float:
        """Of the logs with a known error, in how many it is named."""
        return self.right / self.known_logs

    def as_json(self) -> dict[str, object]:
        """For the results."""
        return {
            "logs_with_a_known_error": self.known_logs,
            "logs_with_an_unknown_error_or_none": self.unknown_logs,
            "named": self.named,
            "right": self.right,
            "precision": round(self.precision, 4),
            "recall": round(self.recall, 4),
            "first_rank_logs": self.first_rank_logs,
            "first_rank_right": self.first_rank_right,
            "wrong": self.wrong,
        }


def diagnosed(log: Log) -> Diagnosis:
    """What is said of a generated log."""
    return diagnose_streams([("engine.log", io.BytesIO(log.data))])


def measure(seeds: tuple[int, ...] = SEEDS) -> Accuracy:
    """Every example of every entry and every unknown error, in generated noise, once a seed."""
    accuracy = Accuracy()
    for seed in seeds:
        for expected, log in _known(seed):
            _count(accuracy, expected, log, _named(diagnosed(log), expected))
        for text, log in _unknown(seed):
            found = diagnosed(log)
            accuracy.unknown_logs += 1
            if found.id:
                accuracy.named += 1
                accuracy.wrong.append((text or "nothing", found.id))
    return accuracy


def _count(accuracy: Accuracy, expected: str, log: Log, said: tuple[str, str]) -> None:
    named, first = said
    accuracy.known_logs += 1
    accuracy.named += bool(named)
    accuracy.right += named == expected
    if named != expected:
        accuracy.wrong.append((expected, named))
    if first:
        accuracy.first_rank_logs += 1
        accuracy.first_rank_right += first == log.failed


def _known(seed: int) -> Iterator[tuple[str, Log]]:
    for number, entry in enumerate(knowledge().entries):
        for index, example in enumerate(entry.examples):
            mixed = seed * 10_000 + number * 10 + index
            if entry.kind == "notice":
                yield entry.id, noted(example, mixed)
            else:
                wait = entry.kind not in ("consequence", "messenger", "vague")
                yield entry.id, failed(example, mixed, others_wait=wait)


def _unknown(seed: int) -> Iterator[tuple[str, Log]]:
    for number, text in enumerate(UNKNOWN):
        yield text, failed(text, seed * 1000 + number)
        yield "", quiet_log(seed * 1000 + number)


def _named(found: Diagnosis, expected: str) -> tuple[str, str]:
    """What it was called and which process failed first (empty where that is not asked).

    A notice or a messenger is right where it is counted as such and not taken for the cause.
    """
    kind = next(entry.kind for entry in knowledge().entries if entry.id == expected)
    if kind in ("notice", "messenger"):
        counted = {**found.notices, **found.repeated}
        return (expected if expected in counted and not found.id else found.id), ""
    first = found.findings.process_of(found.first.place) if found.first else ""
    return found.id, first
