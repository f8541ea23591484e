"""Ranks find torchrun's variables, by the same names and values in every engine."""

import os

import pytest

import simlib
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
    """Where nobody says which ranks share a host, all do, by both engines."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    run = engine(str(path), 2, [])
    for rank in range(2):
        wanted = rank_environ(rank, [0, 0])
        said = dict(word.split("=") for word in run.output[rank].split())
        assert said["GROUP_RANK"] == wanted["GROUP_RANK"]
        assert said["ROLE_WORLD_SIZE"] == "2"
        assert said["TORCHELASTIC_RESTART_COUNT"] == "0"
        assert said["TORCHELASTIC_RUN_ID"]


def test_a_cluster_that_is_named_says_which_ranks_share_a_host():
    def main(rank, world_size):
        return os.environ["LOCAL_RANK"], os.environ["GROUP_RANK"]

    found = {
        None: [("0", "0"), ("1", "0"), ("2", "0")],
        1: [("0", "0"), ("0", "1"), ("0", "2")],
        2: [("0", "0"), ("1", "0"), ("0", "1")],
    }
    for each, wanted in found.items():
        cluster = each and simlib.clusters.ethernet_10g(3, ranks_per_node=each)
        assert simlib.simulate(main, 3, cluster=cluster).results == wanted
