"""Wrong answers to exercise 13.1, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "serve"


def server(order, gradient, age, sign=-1):
    """The server of all answers below; `age` says what it takes for the staleness."""
    theta, came, ages, seen = torch.zeros_like(gradient), torch.zeros(len(gradient) + 1), [], {}
    for version, worker in enumerate(order):
        dist.recv(came, src=worker)
        ages.append(age(version, int(came[-1]), seen.get(worker, 0)))
        seen[worker] = version
        theta += sign * came[:-1]
        dist.send(torch.cat([theta, torch.tensor([version + 1.0])]), dst=worker)
    return ages


def worker(rank, order, gradient, copies=1):
    state = torch.zeros(len(gradient) + 1)
    for _ in range(order.count(rank)):
        for _ in range(copies):
            dist.send(torch.cat([gradient, state[-1:]]), dst=0)
        dist.recv(state, src=0)
    return state[:-1]


def the_version(rank, world_size, order, gradient):
    """the server's version in place of a difference"""
    if rank:
        return worker(rank, order, gradient)
    return server(order, gradient, lambda version, had, last: version)


def one_too_many(rank, world_size, order, gradient):
    """the difference taken after the update"""
    if rank:
        return worker(rank, order, gradient)
    return server(order, gradient, lambda version, had, last: version + 1 - had)


def since_its_last_push(rank, world_size, order, gradient):
    """the updates since this worker's last push, with its own"""
    if rank:
        return worker(rank, order, gradient)
    return server(order, gradient, lambda version, had, last: version - last)


def uphill(rank, world_size, order, gradient):
    """the gradient added"""
    if rank:
        return worker(rank, order, gradient)
    return server(order, gradient, lambda version, had, last: version - had, sign=1)


def version_by_itself(rank, world_size, order, gradient):
    """the version in messages of its own"""
    theta, version, ages = torch.zeros_like(gradient), torch.zeros(1), []
    came, had = torch.zeros_like(gradient), torch.zeros(1)
    for who in order:
        if rank == 0:
            dist.recv(came, src=who)
            dist.recv(had, src=who)
            ages.append(int(version - had))
            theta -= came
            version += 1
            dist.send(theta, dst=who)
            dist.send(version, dst=who)
        elif rank == who:
            dist.send(gradient, dst=0)
            dist.send(version, dst=0)
            dist.recv(theta, src=0)
            dist.recv(version, src=0)
    return theta if rank else ages


def from_anybody(rank, world_size, order, gradient):
    """the server that takes whoever comes first"""
    if rank:
        return worker(rank, order, gradient)
    state, came, ages = torch.zeros(len(gradient) + 1), torch.zeros(len(gradient) + 1), []
    for _ in order:
        src = dist.recv(came)
        ages.append(int(state[-1] - came[-1]))
        state[:-1] -= came[:-1]
        state[-1] += 1
        dist.send(state, dst=src)
    return ages


def keeps_the_books(rank, world_size, order, gradient):
    """the version that never travels, as the server remembers who had which"""
    theta, came, ages, had = torch.zeros_like(gradient), torch.zeros_like(gradient), [], {}
    for version, who in enumerate(order):
        if rank == 0:
            dist.recv(came, src=who)
            ages.append(version - had.get(who, 0))
            had[who] = version + 1
            theta -= came
            dist.send(theta, dst=who)
        elif rank == who:
            dist.send(gradient, dst=0)
            dist.recv(theta, src=0)
    return theta if rank else ages


WRONG = {
    from_anybody: "receive from the worker whose turn it is",
    keeps_the_books: "the version travels both ways",
    the_version: "subtract the version that the worker had",
    one_too_many: "a gradient of the newest theta has staleness 0",
    since_its_last_push: "its own update included",
    uphill: "theta goes the wrong way",
    version_by_itself: "The version can travel with the numbers",
}


def on_each_side(rank, world_size, order, gradient):
    """the server and the workers as two functions"""
    if rank:
        return worker(rank, order, gradient)
    return server(order, gradient, lambda version, had, last: version - had)


ALSO_RIGHT = [on_each_side]
