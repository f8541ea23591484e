"""`SCHEDULERS`: the batch systems that jobs can be handed to, by the names in ``native.json``."""

from __future__ import annotations

from .batch_scheduler import Scheduler
from .pbs_scheduler import PbsScheduler
from .slurm_scheduler import SlurmScheduler

SCHEDULERS: dict[str, type[Scheduler]] = {"slurm": SlurmScheduler, "pbs": PbsScheduler}
