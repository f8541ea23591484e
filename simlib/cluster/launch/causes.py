"""Why ranks could not start, in sentences that launchers and schedulers share.

`{host}` stands for what the launcher names; `{which}`, for how to find out which host it means.
"""

NO_MPI = (
    "a host has no MPI where this one has it{which}: install the same MPI there, at the same path"
)
OTHER_MPI = (
    "mpiexec belongs to another MPI than the one mpi4py has loaded: name the right mpiexec by "
    "launcher=..., or install mpi4py for its MPI"
)
NO_PYTHON = (
    "a host cannot run the Python of this notebook, {host}{which}: install the same environment "
    "there, at the same path"
)
NO_PLUGIN = (
    "srun cannot serve MPI by {host} here: srun --mpi=list says by what it can, mpi=... names it"
)
TOO_MUCH = "more was asked for than there is: take fewer ranks or nodes"
OUT_OF_TIME = (
    "the queue's time limit was over before its ranks were done: give it more by time_limit=..., "
    "as far as the partition allows"
)
OUT_OF_MEMORY = (
    "the job took more memory than it had in the queue: ask for more by memory=..., or take fewer "
    "ranks per node"
)
