"""Twenty small programs that tell whether a version of torch works: ``-m simlib.engines.canary``.

Each runs on real and on simulated ranks, asserts inside that the world is as large as it should be,
and gives what one process without `torch.distributed` gives.
"""
