"""A program of each kind of parallelism, for four ranks: simulated with and without data.

Each stands alone, as its user would write it for a CPU.
"""

from . import data_parallel, split, staged

PROGRAMS = {
    program.__name__: program
    for module in (data_parallel, split, staged)
    for program in module.PROGRAMS
}
