"""Wrong answers to exercise 07.4, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "resume"


def mean_over_ranks(gradient, world_size):
    total = gradient.clone()
    dist.all_reduce(total)
    return total / world_size


def momentum_forgotten(rank, world_size, weights, velocity, gradient):
    """the momentum that begins at zero again"""
    weights = weights.clone()
    dist.broadcast(weights, src=0)
    velocity = mean_over_ranks(gradient, world_size)
    return weights - 0.1 * velocity, velocity


def own_velocity(rank, world_size, weights, velocity, gradient):
    """the step from each rank's own velocity"""
    weights = weights.clone()
    dist.broadcast(weights, src=0)
    velocity = 0.9 * velocity + mean_over_ranks(gradient, world_size)
    return weights - 0.1 * velocity, velocity


def own_gradient(rank, world_size, weights, velocity, gradient):
    """the step with each rank's own gradient"""
    state = torch.stack([weights, velocity])
    dist.broadcast(state, src=0)
    velocity = 0.9 * state[1] + gradient
    return state[0] - 0.1 * velocity, velocity


def summed_gradient(rank, world_size, weights, velocity, gradient):
    """the step with the sum of the gradients"""
    state = torch.stack([weights, velocity])
    dist.broadcast(state, src=0)
    velocity = 0.9 * state[1] + world_size * mean_over_ranks(gradient, world_size)
    return state[0] - 0.1 * velocity, velocity


def gradient_of_rank_0(rank, world_size, weights, velocity, gradient):
    """the step of all ranks with rank 0's gradient"""
    state = torch.stack([weights, velocity, gradient])
    dist.broadcast(state, src=0)
    velocity = 0.9 * state[1] + state[2]
    return state[0] - 0.1 * velocity, velocity


def old_velocity(rank, world_size, weights, velocity, gradient):
    """the step of the weights with the old velocity"""
    state = torch.stack([weights, velocity])
    dist.broadcast(state, src=0)
    mean = mean_over_ranks(gradient, world_size)
    return state[0] - 0.1 * state[1], 0.9 * state[1] + mean


def another_formula(rank, world_size, weights, velocity, gradient):
    """the learning rate taken twice, in the velocity and in the step"""
    state = torch.stack([weights, velocity])
    dist.broadcast(state, src=0)
    velocity = 0.9 * state[1] + 0.1 * mean_over_ranks(gradient, world_size)
    return state[0] - 0.1 * velocity, velocity


def nobody_tells(rank, world_size, weights, velocity, gradient):
    """the step of each rank alone, from its own numbers"""
    velocity = 0.9 * velocity + gradient
    return weights - 0.1 * velocity, velocity


def two_broadcasts(rank, world_size, weights, velocity, gradient):
    """the weights and the velocity in a broadcast each"""
    weights, velocity = weights.clone(), velocity.clone()
    dist.broadcast(weights, src=0)
    dist.broadcast(velocity, src=0)
    velocity = 0.9 * velocity + mean_over_ranks(gradient, world_size)
    return weights - 0.1 * velocity, velocity


def into_the_inputs(rank, world_size, weights, velocity, gradient):
    """the step that changes the gradient it was given"""
    state = torch.stack([weights, velocity])
    dist.broadcast(state, src=0)
    dist.all_reduce(gradient)
    velocity = 0.9 * state[1] + gradient / world_size
    return state[0] - 0.1 * velocity, velocity


WRONG = {
    momentum_forgotten: "the momentum begins at zero again",
    own_velocity: "Each rank goes on with its own velocity",
    own_gradient: "the replicas drift apart",
    summed_gradient: "the step with the sum of the gradients",
    gradient_of_rank_0: "All ranks step with rank 0's gradient",
    old_velocity: "step with the old velocity",
    another_formula: "in a world of 1 nothing comes from others",
    nobody_tells: "No rank communicates",
    two_broadcasts: "can travel in one tensor",
    into_the_inputs: "changed the tensor it was given",
}
