import torch
import torch.distributed as dist


def main(rank, world):
    if rank == 0:
        x = torch.tensor([1.0])
    elif rank == 1:
        x = torch.tensor([2.0])
    elif rank == 2:
        x = torch.tensor([-3.0])
    dist.all_reduce(x, op=dist.reduce_op.SUM)
    print(f"rank {rank} has {x}")


if __name__ == "__main__":
    dist.init_process_group(backend="mpi")
    main(dist.get_rank(), dist.get_world_size())
