"""The small files beside the blocks."""

from tunan.checkpoint.metadata import converted_config, index_of
from tunan.checkpoint.parallel import Part
from tunan.checkpoint.plan import Entry, Layout, PlannedBlock
from tunan.checkpoint.precision import PRECISIONS

BFLOAT16 = Layout(PRECISIONS["bfloat16"], limit=1 << 20)


def test_the_configuration_declares_the_new_number_format() -> None:
    old = {"torch_dtype": "float32", "vocab_size": 5}
    assert converted_config(old, BFLOAT16) == {"torch_dtype": "bfloat16", "vocab_size": 5}
    assert old["torch_dtype"] == "float32"


def test_both_spellings_are_kept_in_step() -> None:
    converted = converted_config({"dtype": "float32"}, BFLOAT16)
    assert converted == {"dtype": "bfloat16", "torch_dtype": "bfloat16"}


def test_the_index_names_files_beside_itself() -> None:
    entry = Entry("w", "BF16", (4,), (Part("w", 0, 4),))
    blocks = [
        PlannedBlock("tensor-parallel-2/rank-1/model-00001-of-00001.safetensors", (entry,), 1)
    ]
    assert index_of(blocks) == {
        "metadata": {"total_size": 8},
        "weight_map": {"w": "model-00001-of-00001.safetensors"},
    }
