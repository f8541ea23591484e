"""Wrong answers to exercise 14.4, each with the words its refusal must hold.

`gradient` and `save` are those of the exercise's setup.
"""

import copy

import torch
import torch.distributed as dist

QUESTION = "survive"


def story(
    xs, every, deaths, keeps_v=True, keeps_w=False, back_to=None, goes_on=False, extra=0, saves=1
):
    """A run in which some things go wrong."""
    step, w, v = 0, torch.zeros_like(xs[0]), torch.zeros_like(xs[0])
    saved, count = (step, w, v), 0
    while step < len(xs):
        g = torch.cat([gradient(w, xs[step]), torch.zeros(extra)])
        dist.all_reduce(g)
        g, count = g[: len(w)] / dist.get_world_size(), count + 1
        if count in deaths:
            old_step, old_w, old_v = back_to or saved
            step = step if goes_on else old_step
            w = w if keeps_w else old_w
            v = old_v if keeps_v else torch.zeros_like(v)
            continue
        v = 0.9 * v + g
        w, step = w - 0.1 * v, step + 1
        if step % every == 0:
            for _ in range(saves):
                saved = save(step, w, v)
    return w, v


def right(rank, world_size, xs, every, deaths):
    return story(xs, every, deaths)


def no_momentum(rank, world_size, xs, every, deaths):
    """a checkpoint without momentum"""
    return story(xs, every, deaths, keeps_v=False)


def step_goes_on(rank, world_size, xs, every, deaths):
    """the run that goes on with the next examples"""
    return story(xs, every, deaths, goes_on=True)


def no_copy(rank, world_size, xs, every, deaths):
    """a checkpoint of weights that later steps change"""
    return story(xs, every, deaths, keeps_w=True)


def from_the_start(rank, world_size, xs, every, deaths):
    """the run that begins anew after each death"""
    start = 0, torch.zeros_like(xs[0]), torch.zeros_like(xs[0])
    return story(xs, every, deaths, back_to=start)


def as_if_nothing(rank, world_size, xs, every, deaths):
    """the run that never notices a death"""
    return story(xs, every, ())


def sends_its_state(rank, world_size, xs, every, deaths):
    """the right run, with room for the state in each all_reduce"""
    return story(xs, every, deaths, extra=len(xs[0]))


def barriers(rank, world_size, xs, every, deaths):
    """the right run, with a barrier at the end"""
    found = story(xs, every, deaths)
    dist.barrier()
    return found


def saves_twice(rank, world_size, xs, every, deaths):
    """the right run, with weights and momentum saved one after the other"""
    return story(xs, every, deaths, saves=2)


def in_place(xs, every, deaths, saved, keep):
    step, w, v = 0, torch.zeros_like(xs[0]), torch.zeros_like(xs[0])
    saved, count = saved or (step, w, v), 0
    while step < len(xs):
        dist.all_reduce(g := gradient(w, xs[step]))
        count += 1
        if count in deaths:
            step, w, v = saved
            continue
        v *= 0.9
        v += g / dist.get_world_size()
        w -= 0.1 * v
        step += 1
        if step % every == 0:
            saved = keep(step, w, v)
    return w, v


def no_copy_at_all(rank, world_size, xs, every, deaths):
    """a checkpoint of weights and momentum that later steps change"""
    return in_place(xs, every, deaths, None, lambda *state: save(*state) and state)


def changes_what_was_saved(rank, world_size, xs, every, deaths):
    """the run that changes in place the checkpoint it went back to"""
    start = 0, torch.zeros_like(xs[0]), torch.zeros_like(xs[0])
    return in_place(xs, every, deaths, start, save)


def changes_the_start(rank, world_size, xs, every, deaths):
    """the run that changes in place what it goes back to, the start included"""
    return in_place(xs, every, deaths, None, save)


def saves_each_step(rank, world_size, xs, every, deaths):
    """the run that saves after each step"""
    return story(xs, 1, deaths)


def free_copies(rank, world_size, xs, every, deaths):
    """checkpoints that cost no time"""
    return aside(xs, every, deaths, gradient, lambda *state: copy.deepcopy(state))


def free_gradients(rank, world_size, xs, every, deaths):
    """gradients that cost no time"""
    return aside(xs, every, deaths, lambda w, x: w - x, save)


def aside(xs, every, deaths, gradient_of, keep):
    """The right run with other tools."""
    step, w, v = 0, torch.zeros_like(xs[0]), torch.zeros_like(xs[0])
    saved, count = (step, w, v), 0
    while step < len(xs):
        dist.all_reduce(g := gradient_of(w, xs[step]))
        count += 1
        if count in deaths:
            step, w, v = saved
            continue
        v = 0.9 * v + g / dist.get_world_size()
        w, step = w - 0.1 * v, step + 1
        if step % every == 0:
            saved = keep(step, w, v)
    return w, v


WRONG = {
    no_momentum: "v belongs into the checkpoint",
    step_goes_on: "the examples of lost steps are missing",
    no_copy: "were the saved weights changed in place",
    from_the_start: "Only steps after the last checkpoint",
    as_if_nothing: "what is lost is done again",
    sends_its_state: "The gradient of one step is enough",
    saves_twice: "One checkpoint of all three",
    barriers: "this question allows only",
    no_copy_at_all: "what was saved is no copy",
    changes_what_was_saved: "gone back to once more",
    changes_the_start: "the zeros of the start",
    saves_each_step: "after `every` steps, not after each",
    free_copies: "make each checkpoint by `save`",
    free_gradients: "take each gradient by `gradient`",
}


def without_the_last(rank, world_size, xs, every, deaths):
    """The last checkpoint is not needed: there is nothing left to lose."""
    step, w, v = 0, torch.zeros_like(xs[0]), torch.zeros_like(xs[0])
    kept, number = [(step, w, v)], 1
    while step < len(xs):
        dist.all_reduce(mean := gradient(w, xs[step]))
        if number in deaths:
            step, w, v = kept[-1]
        else:
            v = 0.9 * v + mean / world_size
            step, w = step + 1, w - 0.1 * v
            if step % every == 0 and step < len(xs):
                kept.append(save(step, w, v))
        number += 1
    return w, v


ALSO_RIGHT = [right, without_the_last]
