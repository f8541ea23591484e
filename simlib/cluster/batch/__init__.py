"""`submit`: the same rank function as a job on a real cluster, by mpiexec, a queue or ssh."""
