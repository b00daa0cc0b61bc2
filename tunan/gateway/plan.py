"""What can be done for a request when its replica is lost, decided before it is sent."""

from dataclasses import dataclass
from types import NoneType
from typing import Any

from tunan.gateway.sampling import sampling_for_resume

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"

# Parameters of one token's choice: they mean the same in a continuation.
CARRIED = frozenset(
    [
        "model",
        "logit_bias",
        "seed",
        "stop",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "length_penalty",
        "stop_token_ids",
        "include_stop_str_in_output",
        "ignore_eos",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "allowed_token_ids",
        "priority",
        "cache_salt",
        "vllm_xargs",
        "user",
        "session_id",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "bad_words",
        "return_tokens_as_token_ids",
        "stream_options",
        "stream_interval",
    ]
)
# Parameters that made the prompt, whose ids are known by then, or that are set anew.
SPENT = frozenset(
    [
        "messages",
        "prompt",
        "stream",
        "n",
        "best_of",
        "max_tokens",
        "max_completion_tokens",
        "min_tokens",
        "logprobs",
        "top_logprobs",
        "return_token_ids",
        "add_generation_prompt",
        "continue_final_message",
        "add_special_tokens",
        "documents",
        "chat_template",
        "chat_template_kwargs",
        "truncate_prompt_tokens",
        "truncation_side",
        "request_id",
        "reasoning_effort",
        "include_reasoning",
        "parallel_tool_calls",
        "metadata",
        "store",
        "service_tier",
        "return_token_offsets",
    ]
)
# vLLM counts these over generated tokens, which a continuation has in its prompt.
_COUNTED = ("frequency_penalty", "presence_penalty", "bad_words")
_PLAIN_FORMAT = {"type": "text"}
_TYPES: dict[str, tuple[type, ...]] = {
    "stop": (str, list),
    "seed": (int,),
    "max_tokens": (int,),
    "max_completion_tokens": (int,),
    "min_tokens": (int,),
    "logprobs": (int, bool),
    "top_logprobs": (int,),
    "stream_options": (dict,),
    "vllm_xargs": (dict,),
}


@dataclass(frozen=True)
class Plan:
    """`additions` go into the request; `obstacle` says why its stream cannot be continued.

    `repeats`: asked again whole, it makes the same answer.
    """

    additions: dict[str, Any]
    obstacle: str = ""
    repeats: bool = False

    @property
    def resumable(self) -> bool:
        """Whether the stream can be continued from its token ids."""
        return not self.obstacle


def plan_resume(path: str, body: dict[str, Any], sampler: bool) -> Plan:
    """How a generation request is sent so that it survives the loss of its replica.

    What cannot be continued from its ids is repeated whole: where that makes the same answer at
    any time, else as long as nothing of it has reached the client.
    """
    if obstacle := _of_another_type(body) or _of_several(path, body):
        return Plan({}, obstacle)
    additions = sampling_for_resume(body, sampler)
    if additions is None:
        return Plan({}, "sampled without a sampler that can be continued")
    if obstacle := _obstacle(path, body, sampler):
        return Plan(additions, obstacle, repeats=True)
    return Plan({"return_token_ids": True, **additions})


def _of_another_type(body: dict[str, Any]) -> str:
    """The engine may refuse it or read it its own way; what is computed with here must be plain."""
    for key, types in _TYPES.items():
        if type(body.get(key)) not in (*types, NoneType):
            return f"a value of an unexpected type for {key!r}"
    stop = body.get("stop")
    if isinstance(stop, list) and not all(isinstance(string, str) for string in stop):
        return "a value of an unexpected type for 'stop'"
    return ""


def _of_several(path: str, body: dict[str, Any]) -> str:
    """Several answers in one: their order is not a function of their tokens."""
    if body.get("n") not in (None, 1) or body.get("best_of") not in (None, 1):
        return "n > 1"
    if body.get("use_beam_search"):
        return "beam search"
    if path == COMPLETION and not _one_prompt(body.get("prompt")):
        return "several prompts"
    return ""


def _obstacle(path: str, body: dict[str, Any], sampler: bool) -> str:
    if body.get("response_format") not in (None, _PLAIN_FORMAT) or body.get("structured_outputs"):
        return "structured output"
    if any(value for key, value in body.items() if key.startswith("guided_")):
        return "structured output"
    if body.get("tools") and body.get("tool_choice") != "none":
        return "tool calls"
    if body.get("echo") or body.get("suffix"):
        return "echo or suffix"
    if not sampler and any(body.get(key) not in (None, 0, 0.0, []) for key in _COUNTED):
        return "penalties or bad_words, which count generated tokens"
    if path == CHAT and _multimodal(body.get("messages")):
        return "multimodal input"
    return _unknown(body)


def _unknown(body: dict[str, Any]) -> str:
    known = CARRIED | SPENT | {"response_format", "tools", "tool_choice"}
    ignored: tuple[Any, ...] = (None, False, 0, [], {})
    for key, value in body.items():
        if key not in known and value not in ignored:
            return f"the parameter {key[:40]!r}, which a continuation does not know"
    return ""


def _one_prompt(prompt: Any) -> bool:
    if isinstance(prompt, str):
        return True
    return isinstance(prompt, list) and bool(prompt) and all(type(i) is int for i in prompt)


def _multimodal(messages: Any) -> bool:
    if not isinstance(messages, list):
        return True
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and any(
            not isinstance(part, dict) or part.get("type") != "text" for part in content
        ):
            return True
    return False
