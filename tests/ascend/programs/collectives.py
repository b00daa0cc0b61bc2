"""Two ranks exchange tensors over the emulated HCCL: `collectives.py PORT`, on two devices."""

import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch_npu

WORLD = 2


def uneven_all_to_all(rank: int) -> list[float]:
    """Rank 0 gives 1 and 3 elements, rank 1 gives 2 and 0."""
    counts = [[1, 3], [2, 0]]
    given = torch.arange(sum(counts[rank]), dtype=torch.float32).to("npu") + 10 * rank
    received = [counts[other][rank] for other in range(WORLD)]
    out = torch.empty(sum(received)).to("npu")
    dist.all_to_all_single(out, given, received, counts[rank])
    return [float(x) for x in out.cpu()]


def batched_point_to_point(rank: int) -> list[float]:
    """Each sends eight tensors to the other and takes eight, all in one batch."""
    other = 1 - rank
    given = [torch.full((3,), float(10 * rank + at)).to("npu") for at in range(8)]
    taken = [torch.empty(3).to("npu") for _ in range(8)]
    operations = [dist.P2POp(dist.isend, x, other) for x in given]
    operations += [dist.P2POp(dist.irecv, x, other) for x in taken]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return [float(x[0].cpu()) for x in taken]


def reduced(rank: int) -> list[float]:
    """The sum, the largest, and the half that reduce_scatter leaves to each."""
    total, largest = torch.full((2,), rank + 1.0).to("npu"), torch.full((2,), rank + 1.0).to("npu")
    dist.all_reduce(total)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    part = torch.empty(1).to("npu")
    dist.reduce_scatter_tensor(part, torch.tensor([1.0, 2.0]).to("npu") * (rank + 1))
    return [float(x[0].cpu()) for x in (total, largest, part)]


def gathered(rank: int) -> list[float]:
    """Both ranks' tensors, and what rank 1 broadcasts."""
    both, told = torch.empty(4).to("npu"), torch.full((1,), float(rank)).to("npu")
    dist.all_gather_into_tensor(both, torch.full((2,), float(rank)).to("npu"))
    dist.broadcast(told, 1)
    return [float(x) for x in torch.cat((both, told)).cpu()]


def run(rank: int, port: str, queue: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch_npu.npu.set_device(rank)
    dist.init_process_group("hccl", rank=rank, world_size=WORLD)
    steps = (uneven_all_to_all, batched_point_to_point, reduced, gathered)
    queue.put((rank, {step.__name__: step(rank) for step in steps}))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    context = mp.get_context("spawn")
    queue = context.Queue()
    ranks = [context.Process(target=run, args=(rank, sys.argv[1], queue)) for rank in range(WORLD)]
    for process in ranks:
        process.start()
    results = dict(queue.get(timeout=240) for _ in ranks)
    for process in ranks:
        process.join()
    sys.stdout.write(f"RESULT {json.dumps([results[rank] for rank in range(WORLD)])}\n")


if __name__ == "__main__":
    main()
