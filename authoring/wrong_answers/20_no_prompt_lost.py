"""Wrong answers to exercise 20.4, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "no_prompt_lost"


def controlled(
    rank, N, answers, lives, world_size, again=True, early=False, ends=True, twice=False, old=False
):
    """The answers by prompt; of a mistake, as rank 0 controls."""
    if rank:
        return generate(rank, answers, lives)
    left, idle, at_work, found, alive = [*range(N)], [], {}, {}, world_size - 1
    left = left + [0] * twice
    while left or at_work or len(idle) < alive:
        said = torch.zeros(2)
        src = dist.recv(said)
        prompt = at_work.pop(src, None)
        if said[0] == -2:
            alive -= 1
            left += [prompt] if again else []
        else:
            idle.append(src)
            if prompt is not None:
                found[prompt] = said[1].item()
        while idle and left:
            at_work[idle[0]] = left.pop(0)
            dist.send(torch.tensor([float(at_work[idle[0]])]), dst=idle.pop(0))
        while early and idle:
            dist.send(torch.tensor([-1.0]), dst=idle.pop(0))
            alive -= 1
    for dst in idle if ends else ():
        dist.send(torch.tensor([-1.0]), dst=dst)
    return found


def right(rank, world_size, N, answers, lives):
    found = controlled(rank, N, answers, lives, world_size)
    return found if rank else [found[prompt] for prompt in range(N)]


def lost(rank, world_size, N, answers, lives):
    """the answers without those of the dead"""
    found = controlled(rank, N, answers, lives, world_size, again=False)
    return found if rank else [found.get(prompt, 0.0) for prompt in range(N)]


def as_they_came(rank, world_size, N, answers, lives):
    """the answers, largest prompt first"""
    found = controlled(rank, N, answers, lives, world_size)
    return found if rank else [found[prompt] for prompt in range(N)][::-1]


def stops_the_idle(rank, world_size, N, answers, lives):
    """the controller that stops a generator as soon as it has no prompt"""
    found = controlled(rank, N, answers, lives, world_size, early=True)
    return found if rank else [found[prompt] for prompt in range(N)]


def never_ends(rank, world_size, N, answers, lives):
    """the controller that stops no generator"""
    found = controlled(rank, N, answers, lives, world_size, ends=False)
    return found if rank else [found[prompt] for prompt in range(N)]


def first_prompt_twice(rank, world_size, N, answers, lives):
    """the controller that gives out prompt 0 twice"""
    found = controlled(rank, N, answers, lives, world_size, twice=True)
    return found if rank else [found[prompt] for prompt in range(N)]


def by_barrier(rank, world_size, N, answers, lives):
    """the right controller, and a barrier at the end"""
    found = right(rank, world_size, N, answers, lives)
    dist.barrier()
    return found


WRONG = {
    lost: "is lost",
    as_they_came: "return them by prompt",
    stops_the_idle: "Did you stop one too early",
    never_ends: "rank 0, which has finished",
    first_prompt_twice: "messages where",
    by_barrier: "this question allows only",
}
ALSO_RIGHT = [right]
