"""Let DTensor do work once for each kind of parameters, instead of once for each parameter.

In the first step of an optimizer on n parameters, torch decides for each parameter how it may be
sharded. Each time, torch looks at all n parameters. With this module, torch decides once for all
parameters that have the same shape and sharding.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

from ...record.torch_inside import when_imported

EXPAND, FLAG = "_expand_single_dim_strategy_to_mesh", "_propagate_use_strided_shard_flag"
METAS = "_propagate_tensor_meta_non_cached"
"""Functions of torch 2.13. Other versions may not have them."""


def prepare_dtensor() -> None:
    """Let DTensor compute once the results that it would compute n times."""
    when_imported("torch.distributed.tensor._op_schema", _remember_arguments)
    when_imported("torch.distributed.tensor._sharding_prop", _ask_for_few)


def _remember_arguments(module):
    """DTensor asks n times for all arguments of an op on a list of n parameters."""
    args_spec = module.OpSchema.args_spec.fget

    def remembered(schema):
        args, found = schema.__dict__.get("remembered", (None, None))
        if args is not schema.args_schema:
            found = args_spec(schema)
            schema.remembered = schema.args_schema, found
        return found

    module.OpSchema.args_spec = property(remembered)


def _ask_for_few(module):
    replaced = (module, EXPAND, _expanded), (module, FLAG, _flagged)
    for owner, name, few in (*replaced, (module.ShardingPropagator, METAS, _metas)):
        original = getattr(owner, name, None)
        if original is not None:
            setattr(owner, name, _instead(few, original))


def _instead(few, original):
    @functools.wraps(original)
    def call(*args):
        return few(original, *args)

    return call


def _one_of_each(schema, *more):
    """For an op on lists: a schema with one element of each kind, with their places and all kinds.

    Returns None for other ops.
    """
    given = [getattr(arg, "children", arg) for arg in schema.args_schema]
    lists = [one for one in (*given, *more) if isinstance(one, (list, tuple))]
    if not schema.op.name().startswith("aten::_foreach_") or len(set(map(len, lists))) != 1:
        return None
    numbers: dict = {}
    kinds = [numbers.setdefault(kind, len(numbers)) for kind in zip(*lists, strict=True)]
    firsts = [kinds.index(number) for number in range(len(numbers))]

    def picked(arg, elements):
        if not isinstance(elements, (list, tuple)):
            return arg
        few = [elements[at] for at in firsts]
        return few if elements is arg else type(arg)(few)

    args = tuple(map(picked, schema.args_schema, given))
    return type(schema)(schema.op, args, schema.kwargs_schema), firsts, kinds


def _expanded(expand, mesh, schema, strategy, metas):
    """The shardings of an op: for one parameter of each kind, and the same for all others."""
    found = _one_of_each(schema, metas)
    if found is None:
        return expand(mesh, schema, strategy, metas)
    few, firsts, kinds = found
    few_metas = None if metas is None else [metas[at] for at in firsts]
    of_few = expand(mesh, few, strategy, few_metas)

    def of_all(op, args, kwargs):
        found = of_few(op, few.args_meta, few.kwargs_meta)
        return type(found)([found.children[kind] for kind in kinds])

    return of_all


def _metas(metas_of, propagator, schema):
    """The shapes of an op's results, from one parameter of each kind."""
    found = _one_of_each(schema)
    if found is None:
        return metas_of(propagator, schema)
    few, _, kinds = found
    metas = metas_of(propagator, few)
    is_of_each = isinstance(metas, (list, tuple))
    return type(metas)([metas[kind] for kind in kinds]) if is_of_each else metas


def _flagged(flag, strategy, schema):
    """Give a strategy the strided sharding of the arguments, with one of each kind."""
    args, few = schema.__dict__.get("strided", (None, None))
    if args is not schema.args_schema:
        sorts = {
            spec.use_strided_shard_as_shard_order: spec
            for spec in schema.args_spec
            if any(hasattr(one, "split_factor") for one in spec.placements)
        }
        few = SimpleNamespace(args_spec=tuple(sorts.values()))
        schema.strided = schema.args_schema, few
    if few.args_spec:
        flag(strategy, few)
