# %% [markdown]
# # 15 What the compiler sends
#
# This is the fifth and last part of lesson 15. You need DDP's buckets and overlap from
# [lesson 08](08_from_loops_to_ddp.ipynb). `torch.compile` turns a function into a graph of ops, and then into faster
# code. In this graph, a collective can start earlier than in your program, and its wait can come later. In this part
# (60 minutes) you will
#
# - see a function as a graph, and find a collective that is missing in the graph,
# - rewrite this function with a functional collective,
# - write a pass that starts collectives early and waits late, and measure how much time it hides,
# - find a wrong result that comes from a change in place,
# - see where DDPOptimizer splits a model.

# %%
import functools

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.distributed import _functional_collectives as functional
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.parallel import DistributedDataParallel

import simlib

# %% [markdown]
# ## A function as a graph
#
# `torch.compile` calls a function once with stand-ins for its tensors, and records the ops in a **graph**
# (`torch.fx.Graph`). Each **node** of the graph is an op. Its inputs are other nodes. Then torch gives the graph to a
# **backend**. The usual backend, inductor, generates C++ or GPU code. Our backend only keeps the names of the ops,
# and runs the graph as it is.
#
# All values in our graphs are tensors. If a call returns or uses an object that is no tensor, such as a request,
# torch ends the graph and lets Python run the call. Then torch begins another graph.
#
# We compile two functions. `local` uses no other rank. `requests` starts an all_reduce of `y`, computes `z` in the
# meantime, and then waits. How many graphs does torch make of `requests`?


# %%
def local(x, A, B):
    return x @ A + torch.relu(x @ B)


def requests(x, A, B):
    y = x @ A
    work = dist.all_reduce(y, async_op=True)
    z = torch.relu(x @ B)
    work.wait()
    return y + z


def compiled(rank, world_size, function):
    graphs = []

    def backend(graph, inputs):
        ops = [node for node in graph.graph.nodes if node.op not in ("placeholder", "output")]
        graphs.append([getattr(op.target, "__name__", str(op.target)) for op in ops])
        return graph.forward

    generator = torch.Generator().manual_seed(rank)  # each rank has its own numbers
    x, A, B = (torch.randn(4, 4, generator=generator) for _ in range(3))
    return torch.compile(function, backend=backend)(x, A, B), graphs


# %%
graphs_of_requests = None

seen = {}
for function in (local, requests):
    seen[function] = simlib.run(compiled, 2, args=(function,))
    for graph in seen[function].results[0][1]:
        print(f"{function.__name__:8}", *graph)
    print(f"{function.__name__:8} sent", *(c.kind for c in seen[function].trace.collectives))
simlib.guess(graphs_of_requests, len(seen[requests].results[0][1]))

# %% [markdown]
# `local` is one graph. `requests` is three graphs, and Python runs the all_reduce and the wait between them. Torch
# calls this a **graph break**. This all_reduce is hard for a compiler, for two reasons:
#
# - It changes `y` in place. So the name `y` means two values, one before and one after the change.
# - It returns a request, `work`, and not a tensor. So the graph cannot say that `y + z` must come after
#   `work.wait()`.
#
# A graph break costs time. The compiler cannot move an op to another graph, and cannot merge ops of two graphs into
# one kernel.
#
# ## Functional collectives
#
# A **functional collective** changes none of its inputs. `functional.all_reduce(y, "sum", dist.group.WORLD)` starts
# the all_reduce and returns a new tensor and no request. Without a compiler, torch calls `wait_tensor` when an op
# first uses this tensor. DTensor (lesson 12) uses these functions, too. The name of their module begins with an
# underscore, so the module may change.
#
# **Now you write it:** `your_sum` computes the same as `requests`, and uses a functional collective. The check compares
# rank 0's result bit by bit. It also wants a single graph, in which no `copy_` changes a tensor in place.


# %%
def your_sum(x, A, B):
    return x @ A  # yours: three or four lines


run = simlib.run(compiled, 2, args=(your_sum,))
sums, graphs = run.results[0]
print(*(" ".join(graph) for graph in graphs), sep="; ")
reasons = {
    "other numbers than requests": not torch.equal(sums, seen[requests].results[0][0]),
    f"{len(graphs)} graphs": len(graphs) != 1,
    "copy_ changes a tensor in place": any("copy_" in graph for graph in graphs),
}
found = [words for words, is_so in reasons.items() if is_so]
print("your_sum:", f"not yet: {', '.join(found)}" if found else "right")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def your_sum(x, A, B):
#         y = functional.all_reduce(x @ A, "sum", dist.group.WORLD)
#         z = torch.relu(x @ B)
#         return y + z
#
# </details>
#
# Now there is one graph. Torch puts the wait directly after the collective. Torch 2.13 also replaces a plain
# `dist.all_reduce(y)` by a functional one, if the call has no `async_op`. Then it copies the result into `y`.
#
# ## A list of nodes
#
# `make_fx` also runs a function once and records its graph. We write each node as a tuple `(name, op, inputs, rest)`.
# `inputs` are names of other nodes, and `rest` are further arguments, such as `"sum"`. `execute` is a small
# interpreter: it computes one node after the other, and gives each piece of work the name of its node. `step` has two
# collectives. In the printed list, which collective could start earlier, and which wait could come later?


# %%
def inputs_of(rank, n=512):
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(n, n, generator=generator) / n**0.5 for _ in range(4)]


def traced(rank, world_size, function):
    nodes = []
    for node in make_fx(function)(*inputs_of(rank)).graph.nodes:
        op = str(node.target) if node.op == "call_function" else "input"
        inputs = tuple(other.name for other in node.all_input_nodes)
        nodes.append((node.name, op, inputs, node.args[len(inputs) :]))
    return nodes[:-1]  # the last one is "output": the result is the node before it


def execute(rank, world_size, nodes):
    values, given = {}, iter(inputs_of(rank))
    for name, op, inputs, rest in nodes:
        if op == "input":
            values[name] = next(given)
        else:
            call = functools.reduce(getattr, op.split("."), torch.ops)  # torch.ops.aten.mm.default
            with simlib.span(name):
                values[name] = call(*(values[x] for x in inputs), *rest)
    return values[name]


# %%
def total(x):
    return functional.all_reduce(x, "sum", dist.group.WORLD)


def step(x, A, B, C):
    a, b = x @ A, torch.relu(x @ B)
    first = total(a)
    second = total(torch.relu(b @ C))
    d = b @ A
    return first + second + d


nodes = simlib.run(traced, 2, args=(step,)).results[0]
for name, op, inputs, rest in nodes:
    print(f"{name:14} = {op.removesuffix('.default')}({', '.join(inputs + rest)})")

# %% [markdown]
# `aten` is torch's library of ops, and `mm` is a matrix product. `"sum"` is the reduction, and `"0"` is torch's
# name of the group of all ranks. The first all_reduce needs only `mm`, so it could start before `mm_1`. Only `add`
# needs its result, so the first wait could come directly before `add`. The second all_reduce needs `relu_1`, so it
# cannot start earlier. But the second wait could come after `mm_3`.
#
# ## Read before the wait
#
# Why not simply drop the waits? The cell below replaces each `wait_tensor` among the inputs by its collective, and
# removes the waits. What happens?

# %%
without_waits = None  # "an error", "wrong numbers" or "right numbers"

ETHERNET = simlib.clusters.ethernet_10g(2, device=simlib.Device(flops_per_s=400e9))
start = functools.partial(simlib.simulate, cluster=ETHERNET)
source = {name: inputs[0] for name, op, inputs, _ in nodes if "wait_tensor" in op}
no_waits = [
    (name, op, tuple(source.get(x, x) for x in inputs), rest)
    for name, op, inputs, rest in nodes
    if name not in source
]
at_once = start(execute, 2, (nodes,))
early = start(execute, 2, (no_waits,))
for title, run in {"at once": at_once, "no waits": early}.items():
    print(f"{title:9}", *(f"{x:.3f}" for x in run.results[0][0, :4].tolist()))
is_same = torch.equal(at_once.results[0], early.results[0])
how = "right numbers" if is_same else "wrong numbers"
simlib.guess(without_waits, how, of=("an error", "wrong numbers", "right numbers"))

# %% [markdown]
# The numbers are wrong, and no error is raised. `add` read the memory of the result before the sum was there. In
# the simulation, this memory still contains the rank's own input. On real ranks, the numbers vary from run to run.
# So each use must depend on the wait. In the graph, an input of `add` is `wait_tensor`, and not `all_reduce`.
#
# ## Start early, wait late
#
# A function that changes a graph is called a **pass**. Our pass moves each collective as early as possible, and
# each wait as late as possible.
#
# **Now you write it:** `your_pass(nodes)` returns the nodes in a new order.
#
# 1. A collective comes directly after the last of its inputs. Only other collectives may come between.
# 2. A wait comes directly before the first node that uses it. Only other waits may come between.
# 3. All other nodes keep their order.
#
# One way: give each node a number, which is its place in the list. Then give each collective and each wait a new
# number between two places, such as 4.5, and sort the nodes by their numbers. In our graphs no collective needs a
# wait.


# %%
def is_wait(node):
    return "wait_tensor" in node[1]


def is_collective(node):
    return node[1].startswith("_c10d_functional") and not is_wait(node)


def your_pass(nodes):
    return nodes  # yours: the same nodes in another order


def verdict_on(order, nodes):
    place = {node[0]: k for k, node in enumerate(order)}
    for k, node in enumerate(order):
        ready = max((place.get(x, len(order)) for x in node[2]), default=-1)
        use = min((place[other[0]] for other in order if node[0] in other[2]), default=len(order))
        if not ready < k < use:
            return f"not yet: {node[0]} comes before one of its inputs"
        if is_collective(node) and not all(map(is_collective, order[ready + 1 : k])):
            return f"not yet: {node[0]} could start earlier"
        if is_wait(node) and not all(map(is_wait, order[k:use])):
            return f"not yet: {node[0]} could come later"
    others = [[n for n in x if not is_wait(n) and not is_collective(n)] for x in (order, nodes)]
    is_right = others[0] == others[1] and len(order) == len(nodes)
    return "right" if is_right else "not yet: other nodes have changed"


twice = [*nodes, ("add_2", "aten.add.Tensor", ("add_1", "wait_tensor"), ())]  # uses a wait again
print("your_pass:", verdict_on(your_pass(twice), twice))

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def your_pass(nodes):
#         number = {node[0]: k for k, node in enumerate(nodes)}
#         for name, _, inputs, _ in filter(is_collective, nodes):
#             number[name] = max(number[x] for x in inputs) + 0.4
#         for wait in filter(is_wait, nodes):
#             users = [number[node[0]] for node in nodes if wait[0] in node[2]]
#             number[wait[0]] = min(users) - 0.4
#         return sorted(nodes, key=lambda node: number[node[0]])
#
# </details>
#
# ## How much is hidden?
#
# The lesson continues with its own pass, `reordered`. On our cluster a matrix product takes 0.67 ms, and an all_reduce
# of 1 MB takes 0.90 ms. If a rank waits at once, it waits 2 x 0.90 = 1.80 ms. In the new order, the first all_reduce
# runs during `mm_1` and `mm_2`, and the second one during `mm_3`. For how many ms does a rank still wait?

# %%
waiting_ms = None


def reordered(nodes):
    number = {node[0]: k for k, node in enumerate(nodes)}
    for name, _, inputs, _ in filter(is_collective, nodes):
        number[name] = max(number[x] for x in inputs) + 0.4
    for wait in filter(is_wait, nodes):
        number[wait[0]] = min(number[node[0]] for node in nodes if wait[0] in node[2]) - 0.4
    return sorted(nodes, key=lambda node: number[node[0]])


late = start(execute, 2, (reordered(nodes),))
print(*(node[0] for node in reordered(nodes) if node[1] != "input"))
computing_s = 4 * 2 * 512**3 / 400e9  # four products of 512 x 512 matrices
for title, run in {"at once": at_once, "late": late}.items():
    waited = run.time_s - computing_s
    print(f"{title:8} {1e3 * run.time_s:.2f} ms, of which the rank waits {1e3 * waited:.2f} ms")
for title, engine in {"real ranks": simlib.run, "simulation": start}.items():
    orders = [engine(execute, 2, args=(order,)).results for order in (nodes, reordered(nodes))]
    print(f"{title}: equal to the bit: {all(map(torch.equal, *orders))}")
simlib.guess(waiting_ms, 1e3 * waited, within=0.1)

# %% [markdown]
# The picture shows rank 0 in both orders. The first row shows the matrix products. The other rows show the two
# all_reduces, from the call until its wait returns. So a bar can be longer than the 0.90 ms that an all_reduce takes.
# A bar is faint blue while the rank computes, and strong blue while it waits.

# %%
figure, panels = plt.subplots(2, 1, figsize=(8, 3.6), sharex=True, layout="constrained")
runs = {"wait at once": at_once, "wait late": late}
for axes, (title, run) in zip(panels, runs.items(), strict=True):
    for piece in run.trace.pieces:
        if piece.rank == 0 and piece.name.startswith("mm"):
            start_ms, end_ms = 1e3 * piece.start_s, 1e3 * piece.end_s
            axes.barh(2, end_ms - start_ms, left=start_ms, color="#999999", edgecolor="white")
            axes.text((start_ms + end_ms) / 2, 2, piece.name, ha="center", va="center")
    for row, op in zip((1, 0), run.trace.of_rank(0), strict=True):
        for begin_s, color in ((op.post_s, "#A6D3F0"), (op.wait_s, "#0072B2")):
            axes.barh(row, 1e3 * (op.end_s - begin_s), left=1e3 * begin_s, color=color)
    axes.set(yticks=[2, 1, 0], yticklabels=["compute", "1st sum", "2nd sum"], title=title)
panels[1].set_xlabel("ms")
figure.words = (
    "Two timelines of rank 0. Top: it waits at once. So it computes nothing during a sum, and needs "
    f"{1e3 * at_once.time_s:.2f} ms. Bottom: it waits late. So it computes mm_1 and mm_2 during the "
    "first sum, and mm_3 during the second one. It waits only for the end of the second sum, and "
    f"needs {1e3 * late.time_s:.2f} ms."
)
plt.show()

# %% [markdown]
# The pass hides all but 0.23 ms: the second all_reduce lasts 0.23 ms longer than `mm_3`. The results are the same to
# the bit, on real ranks and in the simulation. All ranks must use the same order. If one rank starts the second
# all_reduce first, the ranks sum tensors that do not belong together. The ranks compile the same graph, so the same
# pass gives the same order.
#
# ## A change that hides a dependency
#
# The pass looks only at inputs. `masked` sets the first row of its product to 0, in place, and then sums the product
# over the ranks. So the first row of the sum must be 0. `z` is other work for the rank, and `0 * z` adds only zeros.
# Does `reordered` keep this result?

# %%
kept = None  # "yes" or "no"


def masked(x, A, B, C):
    y = x @ A
    z = x @ B
    y[0].zero_()
    return total(y) + 0 * z


def without_changes(rank, world_size, function):
    return traced(rank, world_size, functionalize(function))


for trace in (traced, without_changes):
    graph = simlib.run(trace, 2, args=(masked,)).results[0]
    print(trace.__name__, "-", *(name for name, op, *_ in reordered(graph) if op != "input"))
    before, after = (start(execute, 2, (order,)).results[0] for order in (graph, reordered(graph)))
    rows = (f"{y[0].abs().max():.2f}" for y in (before, after))
    print("  largest number in row 0, before and after the pass:", *rows)
    if trace is traced:
        simlib.guess(kept, "yes" if torch.equal(before, after) else "no", of=("yes", "no"))

# %% [markdown]
# In the first graph, an input of `all_reduce` is `mm`. The node `select` is `y[0]`, a view of `mm`. So `zero_`
# changes the memory of `mm`, but `zero_` is no input of `all_reduce`. The pass starts the all_reduce too early, and
# the result is wrong.
#
# `functionalize` replaces each change in place by an op that returns a new tensor. `select_scatter` makes a copy of
# `mm` with another first row, and is now the input of `all_reduce`. So the result of the pass is right.
# `torch.compile` does this before its passes run. **The inputs show all dependencies only if nothing changes in
# place.** This is why the compiler needs functional collectives.
#
# ## DDP in a compiled model
#
# DDP sends from hooks: when autograd has computed all gradients of a bucket, DDP starts an all_reduce (lesson 08). Our
# backend now compiles the backward pass, too. For autograd, the backward pass of a whole graph is one function. So DDP
# gets all gradients of one graph at the same time.
# [DDPOptimizer](https://docs.pytorch.org/docs/stable/notes/ddp.html) splits the model's graph at the borders of the
# buckets.
#
# `aot_autograd` gives the backend the forward pass and the backward pass as two graphs. It wants functions that get
# their inputs in one list, and `make_boxed_func` makes such functions. `simlib.span("backward")(f)` is the function
# `f` with a span around each call.


# %%
class Net(nn.Sequential):
    def forward(self, x):  # torch.compile does not look into the forward of a plain Sequential
        for layer in self:
            x = layer(x)
        return x


def with_ddp(rank, world_size, split):
    torch._dynamo.config.optimize_ddp = split
    graphs = []

    def forward_graph(graph, inputs):
        graphs.append(graph)
        return make_boxed_func(graph)

    def backward_graph(graph, inputs):
        return make_boxed_func(simlib.span("backward")(graph.forward))

    backend = aot_autograd(fw_compiler=forward_graph, bw_compiler=backward_graph)
    net = Net(*(nn.Linear(512, 512, bias=False) for _ in range(4)))
    net = torch.compile(DistributedDataParallel(net, bucket_cap_mb=1), backend=backend)
    for _ in range(3):
        with simlib.span("step"):
            net(torch.ones(8, 512)).square().mean().backward()
    return len(graphs)


# %% [markdown]
# The model has four layers of 1 MB each, and DDP has buckets of 1 MB. The cell below prints what rank 0 does in
# the third step: `backward` is the backward pass of one graph, and each all_reduce is a send of DDP. DDP's first two
# steps are special (lesson 08). `split=False` turns DDPOptimizer off. In which of the two runs can sends overlap with
# the backward pass?

# %%
for split in (True, False):
    run = simlib.run(with_ddp, 2, args=(split,))
    pieces = [piece for piece in run.trace.pieces if piece.rank == 0]
    begin = max(piece.start_s for piece in pieces if piece.name == "step")
    events = [(piece.start_s, "backward") for piece in pieces if piece.name == "backward"]
    events += [(op.post_s, f"{op.kind} {op.nbytes >> 20} MB") for op in run.trace.of_rank(0)]
    step_three = (text for at, text in sorted(events) if at > begin)
    print(f"split={split}: {run.results[0]} graph(s) -", *step_three, sep="  ")

# %% [markdown]
# DDPOptimizer makes four graphs. After the backward pass of each graph, DDP starts the all_reduce of a bucket, and
# autograd continues with the next graph. Without DDPOptimizer there is one graph, and all sends start after its
# backward pass. So nothing hides them. Both runs send the same all_reduces, because in both runs DDP fills the buckets.
# As with a graph break, the compiler cannot merge ops of two graphs. But here the split makes overlap possible.
#
# ## What we did not show
#
# If a cluster has a device, `simlib.simulate` runs compiled code as if it was not compiled. So we traced on real
# ranks, and simulated the list of nodes. In torch 2.13, inductor reorders collectives only if you set
# `torch._inductor.config.reorder_for_compute_comm_overlap`. Other options put several collectives in one bucket. An
# early collective occupies memory for its result longer, so one of [inductor's
# passes](https://github.com/pytorch/pytorch/blob/main/torch/_inductor/comms.py) stops before the peak of the used
# memory grows.
#
# ## Your turn
#
# [Exercises 15](../exercises/15_frameworks.ipynb): tasks 5 and 6.
#
# ## Exit ticket
#
# 1. Why does `dist.all_reduce(y, async_op=True)` break the graph, while `functional.all_reduce` does not?
# 2. A pass looks only at the inputs of nodes. When is its result wrong?
#
# <details><summary>Answers</summary>
#
# 1. It changes y in place and returns a request, which is no tensor. `functional.all_reduce` returns a new tensor, and
#    the wait is a node of the graph.
# 2. It is wrong if an op changes memory in place, and another node reads this memory. Then the inputs do not show
#    that the other node depends on the change.
#
# </details>
#
# **Next:** [lesson 16](16_the_real_cluster.ipynb): the real cluster.
