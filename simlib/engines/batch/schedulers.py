"""`SCHEDULERS`: the batch systems that jobs can be handed to, by the names that users say."""

from __future__ import annotations

from .batch_scheduler import Scheduler
from .slurm_scheduler import SlurmScheduler

SCHEDULERS: dict[str, type[Scheduler]] = {"slurm": SlurmScheduler}
