"""Takes vLLM's description of a step's prompts apart, for attention to them one at a time.

Over all prompts of a step at once, the last bits of what vLLM projects up for one would depend on
the others.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch


def one_by_one(metadata: Any) -> Iterator[tuple[slice, Any]]:
    """Which of the prompts' tokens are each prompt's, and vLLM's metadata if it came alone.

    The prompts' backend is prepared for each in turn, and in the end for all again.
    """
    prefill = metadata.prefill
    starts = prefill.query_start_loc.tolist()
    if prefill.chunked_context is not None or len(starts) == 2:
        yield slice(None), metadata
        return
    try:
        for begin, end in itertools.pairwise(starts):
            alone = replace(
                prefill,
                query_start_loc=torch.tensor([0, end - begin], dtype=torch.int32),
                max_query_len=end - begin,
            )
            prefill.prefill_backend.prepare_metadata(alone)
            yield slice(begin, end), replace(metadata, prefill=alone)
    finally:
        prefill.prefill_backend.prepare_metadata(prefill)
