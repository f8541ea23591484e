"""A job of Slurm's loses a node on a practice cluster, is handed in again, and goes on."""

import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))

import record_failures  # noqa: E402


def test_a_job_goes_on_without_a_node(needs_practice_cluster, tmp_path):
    """With a spare node, and from the checkpoint that was saved last."""
    needs_practice_cluster(slurm=True)
    text = "\n".join(record_failures.requeue(tmp_path))
    assert "attempt 0 on node[1-3]" in text
    assert "attempt 1 on node[1,3-4]" in text
    results = record_failures.results_of(text)
    expected = record_failures.undisturbed()
    assert [result[:3] for result in results] == [(rank, 1, 3) for rank in range(3)]
    for _, _, _, began, weights in results:
        assert began >= 4
        assert (torch.tensor(weights) - expected).abs().max() < 1e-6
