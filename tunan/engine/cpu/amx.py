"""Asks Linux for the tile registers that vLLM's attention on AMX machines uses.

A process may use them only after it has asked (arch_prctl, ARCH_REQ_XCOMP_PERM), and vLLM 0.32
leaves that to oneDNN's first large matrix product. A model whose first step has none, a small one
with a short prompt, dies of SIGILL without a word.
"""


def ask_for_tiles() -> None:
    """Asks, where the machine has them; a child process inherits the answer."""
    import torch

    if torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()
