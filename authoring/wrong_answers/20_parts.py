"""Wrong answers to exercise 20.2, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "parts"


def counted(
    tokens,
    arrives,
    token_ms,
    again_ms,
    late=False,
    waits=False,
    all_=False,
    then=False,
    free=False,
    each=False,
):
    """The parts; of a mistake, as it counts."""
    now, found = 0, []
    for count in tokens:
        written, version = {}, None
        for done in range(count):
            newest = len([at for at in arrives if at < now or (at == now and not late)])
            if waits and done:
                newest = version
            if done and newest != version and not free:
                now += again_ms * (count if all_ else done) * (newest - version if each else 1)
                newest = sum(at <= now for at in arrives) if then else newest
            version = newest
            now += token_ms
            written[version] = written.get(version, 0) + 1
        found.append(written)
    return found


def right(rank, world_size, *given):
    return counted(*given)


def only_between(rank, world_size, *given):
    """the parts if weights were taken between rollouts only"""
    return counted(*given, waits=True)


def reads_for_nothing(rank, world_size, *given):
    """the parts if reading again took no time"""
    return counted(*given, free=True)


def reads_all(rank, world_size, *given):
    """the parts if the whole rollout were read again"""
    return counted(*given, all_=True)


def one_token_late(rank, world_size, *given):
    """the parts if weights came too late at the end of a token"""
    return counted(*given, late=True)


def reads_with_the_next(rank, world_size, *given):
    """the parts if weights were taken while reading"""
    return counted(*given, then=True)


def reads_for_each(rank, world_size, *given):
    """the parts if several new versions were read for one by one"""
    return counted(*given, each=True)


def asks_at_once(rank, world_size, tokens, arrives, token_ms, again_ms, one_by_one=False):
    """the parts if weights that arrive while reading were read for at once"""
    now, version, found = 0, 0, []
    for count in tokens:
        written = {}
        for done in range(count):
            while any(at <= now for at in arrives[version:]):
                version = version + 1 if one_by_one else sum(at <= now for at in arrives)
                now += again_ms * done
            now += token_ms
            written[version] = written.get(version, 0) + 1
        found.append(written)
    return found


def asks_for_each(rank, world_size, *given):
    """the parts if each version were read for as soon as it is there"""
    return asks_at_once(rank, world_size, *given, one_by_one=True)


def by_the_last(rank, world_size, *given):
    """the parts that belong to the last version alone"""
    return [{max(one): sum(one.values())} for one in counted(*given)]


def tells(rank, world_size, *given):
    """the parts, and a message to the next rank"""
    request = dist.isend(torch.ones(1), dst=(rank + 1) % world_size)
    dist.recv(torch.ones(1), src=(rank - 1) % world_size)
    request.wait()
    return counted(*given)


WRONG = {
    only_between: "A rollout must take new weights in its middle",
    reads_for_nothing: "that takes time, too",
    reads_all: "not those to come",
    one_token_late: "are taken before the next one",
    reads_with_the_next: "while the generator reads",
    reads_for_each: "read again only once",
    asks_at_once: "first write a token",
    asks_for_each: "only when a token is done",
    by_the_last: "not for the last one",
    tells: "5 messages where 0 are enough",
}
ALSO_RIGHT = [right]
