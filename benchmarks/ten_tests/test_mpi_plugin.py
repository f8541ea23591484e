"""The ten tests by pytest-mpi: `mpiexec -n 4 python -m pytest --with-mpi`, a pytest each rank."""

import os

import pytest
import torch.distributed as dist
from mpi4py import MPI
from programs import TEN


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    comm = MPI.COMM_WORLD
    path = comm.bcast(str(tmp_path_factory.mktemp("store") / f"store{os.getpid()}"))
    store = dist.FileStore(path, comm.size)
    dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size)
    yield comm.rank, comm.size
    dist.destroy_process_group()


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("program", TEN, ids=lambda program: program.__name__)
def test_program(world, program):
    program(*world)
