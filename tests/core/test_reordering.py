"""`simulate(seed=...)`: what depends on an order nobody promised is found, and nothing else."""

import pytest
import torch
import torch.distributed as dist

import simlib


def gathered(rank, n, use):
    """Rank 0 receives from any source, and makes something of what came."""
    if rank:
        dist.send(torch.tensor([float(rank)]), 0)
        return None
    got = []
    for _ in range(n - 1):
        x = torch.zeros(1)
        dist.recv(x)
        got.append(x.item())
    return use(got)


def findings(function, n, *args, seeds=range(4)):
    return [simlib.simulate(function, n, args=args, seed=seed).findings for seed in seeds]


def test_an_order_that_shows_in_the_result_is_a_race_and_the_seed_that_is_named_shows_it_again():
    seed = next(s for s in range(4) if simlib.simulate(gathered, 4, (list,), seed=s).findings)
    (found,), (again,) = (
        simlib.simulate(gathered, 4, (list,), seed=seed).findings for _ in range(2)
    )
    assert found.kind == "race" and f"seed={seed}" in found.message
    assert str(found) == str(again)
    assert "recv(src=any)" in str(found.sites[0])
    assert found.run.results[0] != simlib.simulate(gathered, 4, args=(list,)).results[0]
    with pytest.raises(simlib.RaceError, match="another possible order"):
        simlib.simulate(gathered, 4, (list,), seed=seed, strict=True)


def test_a_task_farm_is_no_race_nor_are_results_that_are_equal_in_another_order():
    def by_sender(rank, n):
        if rank:
            dist.send(torch.tensor([float(rank)]), 0)
            return None
        x = torch.zeros(1)
        return {dist.recv(x): x.clone() for _ in range(n - 1)}

    assert findings(gathered, 5, sum) == findings(by_sender, 4) == [[]] * 4


def test_an_order_in_which_the_program_fails_is_a_race():
    assert simlib.simulate(swapped, 3).findings == []
    found = [finding for each in findings(swapped, 3, seeds=range(8)) for finding in each]
    assert any("fails in another possible order" in finding.message for finding in found)


def swapped(rank, n):
    """Works where rank 2's message comes first, which it does: it is sent earlier."""
    if rank == 0:
        dist.recv(torch.zeros(1))
        dist.recv(torch.zeros(1), src=1)
    else:
        simlib.compute(0.1 if rank == 1 else 0.0)
        dist.send(torch.ones(1), 0)


@pytest.mark.parametrize("seed", range(3))
def test_named_sources_and_collectives_leave_no_choice(seed):
    def main(rank, n):
        x = torch.randn(100)
        dist.all_reduce(x)
        y = torch.zeros(100)
        request = dist.isend(x * rank, (rank + 1) % n)
        dist.recv(y, (rank - 1) % n)
        request.wait()
        return y.sum().item()

    assert simlib.simulate(main, 5, seed=seed).findings == []
