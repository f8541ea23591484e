"""What carries the calls of a rank: Gloo, NCCL or MPI, and what each of them can."""
