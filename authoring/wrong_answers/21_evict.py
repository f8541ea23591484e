"""Wrong answers to exercise 21.4, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "evict"


def agreed(most, op=dist.ReduceOp.MIN):
    room = torch.tensor(most)
    dist.all_reduce(room, op=op)
    return room.item()


def fitting(running, room, growth=1, least=1, again=sum):
    """How many stay, and what the others need; of a mistake, as it counts."""
    kept = len(running)
    while kept > least and sum(map(sum, running[:kept])) + growth * kept > room:
        kept -= 1
    return kept, sum(map(again, running[kept:]))


def own_room(rank, world_size, running, most):
    """the eviction that each rank decides for itself"""
    return fitting(running, most)


def most_room(rank, world_size, running, most):
    """the eviction that asks the rank with the most room"""
    return fitting(running, agreed(most, dist.ReduceOp.MAX))


def mean_room(rank, world_size, running, most):
    """the eviction by the mean room of the ranks"""
    return fitting(running, agreed(most, dist.ReduceOp.SUM) / world_size)


def room_of_all(rank, world_size, running, most):
    """the eviction by the room of all ranks together"""
    return fitting(running, agreed(most, dist.ReduceOp.SUM))


def no_growth(rank, world_size, running, most):
    """the eviction that forgets the tokens of the next step"""
    return fitting(running, agreed(most), growth=0)


def oldest_first(rank, world_size, running, most):
    """the eviction of the oldest requests"""
    return fitting(running[::-1], agreed(most))


def nobody_stays(rank, world_size, running, most):
    """the eviction that gives up the oldest request, too"""
    return fitting(running, agreed(most), least=0)


def prompts_again(rank, world_size, running, most):
    """the eviction after which only prompts are prefilled again"""
    return fitting(running, agreed(most), again=lambda request: request[0])


def written_again(rank, world_size, running, most):
    """the eviction after which only written tokens are prefilled again"""
    return fitting(running, agreed(most), again=lambda request: request[1])


def all_rooms(rank, world_size, running, most):
    """the eviction for which every rank collects the room of all others"""
    rooms = [None] * world_size
    dist.all_gather_object(rooms, most)
    return fitting(running, min(rooms))


def two_all_reduces(rank, world_size, running, most):
    """the eviction that agrees on the room and then on the number"""
    kept, again = fitting(running, agreed(most))
    return agreed(kept), again


WRONG = {
    own_room: "then they give up different requests",
    most_room: "not only where there is most room",
    mean_room: "take the least room, not the mean",
    room_of_all: "is no room for a request",
    no_growth: "one token to each request that stays",
    oldest_first: "take the newest",
    nobody_stays: "The oldest request always stays",
    prompts_again: "What a request has written",
    written_again: "The prompt must be prefilled again",
    all_rooms: "calls all_gather",
    two_all_reduces: "carry 8, then 8 bytes",
}


EARNS = {two_all_reduces: 2}


def agree_on_the_number(rank, world_size, running, most):
    kept = torch.tensor(fitting(running, most)[0])
    dist.all_reduce(kept, op=dist.ReduceOp.MIN)
    return kept.item(), sum(prompt + written for prompt, written in running[kept:])


ALSO_RIGHT = (agree_on_the_number,)
