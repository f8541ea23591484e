import torch
import torch.distributed as dist


def main(rank, world):
    if rank == 0:
        x = torch.tensor([1.0, -1.0])
        dist.send(x, dst=1)
        print(f"rank {rank} has sent {x}")
    else:
        z = torch.tensor([0.0, 0.0])
        dist.recv(z, src=0)
        print(f"rank {rank} has received {z}")


if __name__ == "__main__":
    dist.init_process_group(backend="mpi")
    main(dist.get_rank(), dist.get_world_size())
