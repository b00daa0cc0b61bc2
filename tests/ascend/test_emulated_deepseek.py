"""DeepSeek-V2 and V3 on the emulated device: latent attention and mixtures of experts.

vllm-ascend 0.23.0 runs the attention of a prompt in bfloat16 whatever the model's type; the small
models' tokens hold all the same.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.ascend.conftest import LENGTH, PROMPTS, Reference
from tests.ascend.emulated import Outcome, generate

pytestmark = pytest.mark.ascend

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": LENGTH, "ignore_eos": True}
LONG = [(7 * at) % 500 + 3 for at in range(300)]


def tokens(outcome: Outcome) -> list[list[int]]:
    return [answer["tokens"][0] for answer in outcome.result]


def greedy() -> list[dict[str, Any]]:
    return [{"prompt": prompt, **GREEDY} for prompt in PROMPTS]


def test_v3_in_graph_mode_gives_the_tokens_of_transformers(
    deepseek_v3: Path, reference: Reference
) -> None:
    outcome = generate(deepseek_v3, greedy(), engine={"enforce_eager": False})
    assert tokens(outcome) == [reference(deepseek_v3, prompt) for prompt in PROMPTS]
    assert outcome.operators() >= {
        "aclnnFusedInferAttentionScoreV3",
        "aclnnFusedInferAttentionScoreV4",
        "aclnnKvRmsNormRopeCache",
        "aclnnInterleaveRope",
        "aclnnMoeGatingTopK",
        "aclnnMoeInitRoutingV3",
        "aclnnMoeTokenUnpermute",
    }


@pytest.mark.long
def test_v2_with_experts_on_two_devices_gives_the_tokens_of_transformers(
    deepseek_v2: Path, reference: Reference
) -> None:
    engine = {"tensor_parallel_size": 2, "enable_expert_parallel": True}
    outcome = generate(deepseek_v2, greedy(), engine=engine, devices=2)
    assert tokens(outcome) == [reference(deepseek_v2, prompt) for prompt in PROMPTS]


@pytest.mark.long
def test_v2_takes_a_prompt_in_parts_and_from_the_cache(
    deepseek_v2: Path, reference: Reference
) -> None:
    engine = {"max_num_batched_tokens": 128, "enable_chunked_prefill": True}
    outcome = generate(
        deepseek_v2,
        [{"prompt": LONG, **GREEDY}, {"prompt": LONG, **GREEDY}],
        engine=engine | {"enable_prefix_caching": True},
    )
    assert outcome.result[1]["cached"] == 256
    assert tokens(outcome) == [reference(deepseek_v2, LONG)] * 2
    assert outcome.operators() >= {"atb::PagedCacheLoad", "aclnnAttentionUpdate"}
