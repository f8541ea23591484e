"""The ten tests by PyTorch's own `MultiProcessTestCase`."""

import unittest

import torch.distributed as dist
from programs import TEN
from torch.testing._internal.common_distributed import MultiProcessTestCase


class TestPrograms(MultiProcessTestCase):
    @property
    def world_size(self):
        return 4

    def setUp(self):
        super().setUp()
        self._spawn_processes()


def _method(program):
    def test(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        program(self.rank, self.world_size)
        dist.destroy_process_group()

    return test


for _program in TEN:
    setattr(TestPrograms, f"test_{_program.__name__}", _method(_program))


if __name__ == "__main__":
    unittest.main()
