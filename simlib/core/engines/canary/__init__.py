"""Twenty small programs that tell whether a version of torch works.

``python -m simlib.engines.canary`` runs them.

Each runs on real and on simulated ranks, asserts inside that the world is as large as it should be,
and gives what one process without `torch.distributed` gives.
"""
