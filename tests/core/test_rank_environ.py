"""Ranks find torchrun's variables, by the same names and values in every engine."""

import pytest

from simlib.core.engines.processes.real_run import run_script
from simlib.core.engines.rank_process.setup import environ_on_equal_nodes, rank_environ
from simlib.core.engines.virtual.simulated_run import simulate_script

SCRIPT = """
import os
names = sorted(name for name in os.environ if name.startswith(("GROUP_", "ROLE_", "TORCHELASTIC_")))
print(*(f"{name}={os.environ[name]}" for name in names))
"""


def test_equal_nodes_are_a_list_of_nodes():
    for ranks_per_node in range(1, 8):
        nodes = [rank // ranks_per_node for rank in range(7)]
        for rank in range(7):
            assert environ_on_equal_nodes(rank, 7, ranks_per_node) == rank_environ(rank, nodes)


@pytest.mark.parametrize("engine", [run_script, simulate_script])
def test_a_script_finds_them_before_its_first_line(engine, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    run = engine(str(path), 2, [])
    nodes = [0, 0] if engine is run_script else [0, 1]
    for rank in range(2):
        wanted = rank_environ(rank, nodes)
        said = dict(word.split("=") for word in run.output[rank].split())
        assert said["GROUP_RANK"] == wanted["GROUP_RANK"]
        assert said["ROLE_WORLD_SIZE"] == "2"
        assert said["TORCHELASTIC_RESTART_COUNT"] == "0"
        assert said["TORCHELASTIC_RUN_ID"]
