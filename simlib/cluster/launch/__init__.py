"""What starts ranks, and how they find each other: mpiexec, srun, addresses. It loads no MPI.

`import simlib` comes here, and so does a rank's supervisor, which has to be there before MPI is.
"""
