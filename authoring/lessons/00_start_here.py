# %% [markdown]
# # 00 Start here
#
# A large model is trained by many processes at once, on many machines. In this course you write
# what **one** of these processes does, and run as many of them as you like, here, on your own
# machine, from a notebook cell. Every run shows you who said what to whom.
#
# In the next 25 minutes you will
#
# - see whether this machine is ready,
# - start four processes from one cell,
# - read the picture of a run,
# - run the same function on a cluster that you do not have,
# - break a run and go on,
# - meet the three answers an exercise check can give.
#
# Run the cells from top to bottom with Shift+Enter. Lessons ask you to **predict** before you run:
# write your guess in place of the `None` where a cell says `guess = None`. If it is a number or one of few,
# the cell answers. Nobody reads it but you, and a wrong guess teaches more than a cell that was only read.
# Where you are to *write*, it is a line or two, and the cell says whether they are right.
#
# ## Is this machine ready?
#
# The course needs Python, PyTorch and the part of PyTorch that lets processes talk,
# `torch.distributed`. The talking is done by a *backend*. Ours is **Gloo**: it comes with PyTorch
# and needs neither a GPU nor a network. The next cell looks for all of them and says in words what
# it found.

# %% tags=["nbval-ignore-output"]
import os
import platform

import torch
import torch.distributed as dist

import simlib

print(
    f"Python {platform.python_version()} and torch {torch.__version__} on {os.cpu_count()} cores."
)
if dist.is_available() and dist.is_gloo_available():
    print("torch.distributed is here, and so is its Gloo backend.")
    print("This machine is ready for the course.")
else:
    print("This torch cannot connect processes: install the torch that this course names.")

# %% [markdown]
# ## Four processes from one cell
#
# A process that takes part in a run is called a **rank**, and it is known by its number: 0, 1, 2
# and so on. The number of ranks is the **world size**. What the ranks do is written once, as a
# function of these two numbers. We call it a *rank function*.
#
# `simlib.run` calls the function on every rank, each in a process of its own. Here every rank
# prints one line and returns one number. How many lines will you see below the cell? What is in
# `run.results`? Guess, then run. (The first run in a notebook takes some seconds. PyTorch is loaded
# for all later ones.)

# %%
guess = None  # how many lines?


def hello(rank, world_size):
    print("I am rank", rank, "of", world_size)
    return rank * rank


run = simlib.run(hello, world_size=4)
simlib.guess(guess, len(run.results))
run.results

# %% [markdown]
# Four lines from one `print`: every rank runs the **whole** function. The ranks differ in one thing
# only, their number. This style has a name, *single program, multiple data* (SPMD), and nearly all
# distributed training is written in it.
#
# The number in brackets in front of a line says which rank printed it. The lines are shown in the
# order of the ranks, whoever was first. `run.results` holds what the ranks returned: `results[3]`
# comes from rank 3.
#
# **Now you write it.** The ranks stand in a ring: the neighbour of rank 0 is rank 1, and that of the last rank
# is rank 0. Return the number of one's neighbour, in a world of any size.


# %%
def neighbour(rank, world_size):
    return None  # your line


found = [simlib.run(neighbour, world_size).results for world_size in (1, 2, 4)]
print(found, "right" if found == [[0], [1, 0], [1, 2, 3, 0]] else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `return (rank + 1) % world_size`
#
# </details>
#
# ## Each rank has its own memory
#
# The function below changes a variable of this notebook. There are four ranks, and each adds its
# own rank. What does `counter` hold afterwards, here in the notebook?

# %%
guess = None  # counter after the run?

counter = 100


def add_my_rank(rank, world_size):
    global counter
    counter += rank
    return counter


run = simlib.run(add_my_rank, world_size=4)
print("the ranks returned", run.results)
print("here counter is", counter)
simlib.guess(guess, counter)

# %% [markdown]
# Each rank was given its own copy of the function and of the variables it uses, changed its copy,
# and ended. Nothing is shared, neither with the other ranks nor with the notebook. So there are
# exactly two ways for a value to leave a rank: it **returns** it, or it **sends** it to another
# rank. Random numbers are each rank's own too: torch's are the same on all ranks and in every run,
# until the rank function seeds them otherwise (`torch.manual_seed(rank)`); those of `random` and
# `numpy` differ, as in processes just started.
#
# ## The picture of a run
#
# Now the ranks talk. Rank 0 works for a fifth of a second (it sleeps, which takes as long) and then
# sends one number to each other rank, one after the other, with a pause after each. Each of the
# others receives it first and then works for a twentieth of a second. `dist.send(x, dst=1)` means
# "to rank 1"; `dist.recv(holder, src=0)` means "from rank 0, into this tensor".
#
# A run that stands alone on the last line of a cell draws itself. What will ranks 1, 2 and 3 be
# doing during the first 200 ms?

# %%
import time

guess = None  # the first 200 ms of ranks 1, 2 and 3: "work" or "wait"?


def tell_everyone(rank, world_size):
    if rank == 0:
        time.sleep(0.2)
        for dst in range(1, world_size):
            dist.send(torch.tensor([42.0]), dst=dst)
            time.sleep(0.05)  # or all arrows would lie on one another in the picture
    else:
        holder = torch.zeros(1)
        dist.recv(holder, src=0)
        time.sleep(0.05)
        return holder.item()


run = simlib.run(tell_everyone, world_size=4)
simlib.guess(guess, "wait", of=("work", "wait"))
run

# %% [markdown]
# How to read it:
#
# - Every rank has a **lane** and a **colour**, the same in all pictures of this course. Rank 0 is
#   on top. Time runs from left to right; read its unit below the axis. ("Real" ranks are processes
#   of this machine, and their times are measured.)
# - The lanes begin at different times, because processes do not start at the same moment. Time 0 is
#   where the first rank begins.
# - **Filled** means: the rank computes (here: sleeps).
# - **Hatched** means: the rank waits in a call for somebody else. Ranks 1, 2 and 3 wait for 200 ms
#   and more: they have nothing to do until rank 0 has done its work and comes to them. To make such
#   areas small is half of the art of distributed training.
# - A **pale** fill means: nobody is waited for any more, the data are on their way (*transferring*).
#   Three numbers take no time to see; later pictures have more of it. A hardly visible fill: the rank is
#   inside a call, but does not wait yet.
# - A thin **line** through a lane is where a call begins. The calls of rank 0 are so short
#   that nothing else is seen of them.
# - An **arrow** is a message. It runs from the sender's call to the end of the receiver's. These
#   three are nearly upright, because the receivers are already there.
#
# The text form of the same run is a table without times, the same for every repeat. Everything it says
# can also be had as data: messages and bytes by rank, and every single call, with the line of your
# program that made it. (A number of type float32 takes 4 bytes.)

# %%
print(run)
print("messages by rank:", run.messages)
print("bytes by rank:   ", run.bytes_sent)
first = run.trace.of_rank(1)[0]
print("rank 1 called", first.call, "with", first.nbytes, "bytes, in the line", first.site.line_text)

# %% [markdown]
# The picture can also be **played**. Press the triangle, or drag through the picture: what is to come
# is pale, a message on its way is a dot, and below stands what each rank does at that moment. Point
# at a call, and you see its bytes and the line of your program. (Where this page is only read, the
# picture stands here once more.)

# %%
run.play()

# %% [markdown]
# **Now you write it.** The last rank sends the tensor `x` to rank 0, and rank 0 returns the number that came.
# Four lines, with an `if`.


# %%
def tell_rank_0(rank, world_size):
    x = torch.tensor([10.0 * rank])
    # your lines: the last rank sends x, rank 0 receives into x
    return x.item()


run = simlib.run(tell_rank_0, world_size=3)
print(run.results[0], run.messages, "right" if run.results[0] == 20 else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     if rank == world_size - 1:
#         dist.send(x, dst=0)
#     elif rank == 0:
#         dist.recv(x, src=world_size - 1)
#
# </details>
#
# ## The same function on another cluster
#
# `simlib.run` uses this machine and measures with the clock on the wall. `simlib.simulate` calls
# the same function, unchanged, on a **modelled cluster**. Its ranks compute and exchange real
# tensors, but time is worked out, not measured: each rank has a **virtual clock**, and each message
# moves it by what the modelled network needs for it. `time.sleep(0.2)` moves it by 0.2 s, and you
# do not wait.
#
# The next cell runs `tell_everyone` three times with each, and prints the seconds of each run. Rank
# 0 sleeps for 200 ms and then three times for 50 ms: 350 ms. How many of the six numbers will be
# equal? Will the results be?

# %% tags=["nbval-ignore-output"]
guess = None  # how many of six times are equal?

times_s = []
for engine in (simlib.run, simlib.simulate):
    runs = [engine(tell_everyone, world_size=4) for _ in range(3)]
    print(engine.__name__, *[run.time_s for run in runs], sep="\n    ")
    print("    results", runs[0].results)
    times_s += [run.time_s for run in runs]
simlib.guess(guess, max(times_s.count(time_s) for time_s in times_s))

# %% [markdown]
# The results are the same. The times of `run` differ in every repeat, because your machine also
# does other things. Those of `simulate` are equal to the last digit, today and on every other
# machine. And each digit has a reason. Unless you name another cluster, the ranks are on computers
# joined by Ethernet of 10 Gbit/s. There each message takes 30 microseconds (us) before anything
# arrives; then its bytes come, 1.25 billion per second. So a message of 4 bytes takes 30.0032 us.
# There are three, and the sleeps: 0.35 + 3 x 0.0000300032 = 0.3500900096 s. (The very last digits
# may come from rounding.)
#
# Now name a slower network, and take 1,000 ranks: no laptop likes to start so many processes. How
# long will they take on Ethernet of 1 Gbit/s, where each message takes 50 us before anything
# arrives? And how long will you wait?

# %%
guess = None  # virtual seconds?

cluster = simlib.clusters.ethernet_1g(nodes=1000)
run = simlib.simulate(tell_everyone, world_size=1000, cluster=cluster)
print("messages sent by rank 0:", run.messages[0])
print(f"rank 999 returned {run.results[999]}; virtual time {run.time_s:.6f} s")
simlib.guess(guess, run.time_s, within=0.1)

# %% [markdown]
# You waited some seconds at most; on that cluster it would be 50. Almost all of them are the pauses
# of rank 0, which talks to 999 ranks one after the other. Lesson 04 shows how 1,000 ranks are told
# in 10 steps.
#
# **Now you write it.** A run ends when its last rank ends. Let a run of 4 ranks take exactly one virtual
# second, and let only rank 3 work. One or two lines.


# %%
def one_second(rank, world_size):
    pass  # your lines


run = simlib.simulate(one_second, world_size=4)
ends_s = [end_s for _, end_s in run.trace.spans]
print(ends_s, "right" if ends_s == [0, 0, 0, 1] else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     if rank == 3:
#         time.sleep(1)
#
# You waited for nothing.
#
# </details>
#
# You will use both engines, often on one function:
#
# | | `simlib.run` | `simlib.simulate` |
# |---|---|---|
# | ranks | processes of this machine, a handful | modelled, up to 4,096 |
# | network | this machine's memory | the one you name |
# | time | the clock on the wall, noisy | a virtual clock, the same every time |
# | good for | what your program really does here | "what if", large worlds, exact times |
#
# One thing to know: computing takes **no** virtual time, unless the cluster is given a device with
# a speed. Only messages and sleeps move the clock here. Pictures of simulated runs say *virtual
# time* below the axis.
#
# ## When a rank fails
#
# You will write many programs that go wrong: that is what the course is for. In this one, rank 2
# fails while the others wait for a message that will never come. On a real cluster this often looks
# like nothing at all: a job that stands still. What do you expect here? (The error below is meant
# to be there. Run All goes on after it.)


# %% tags=["raises-exception"]
def divide(rank, world_size):
    share = 1 / (2 - rank)  # rank 2 divides by zero
    dist.barrier()  # wait here until every rank has arrived
    return share


simlib.run(divide, world_size=4)

# %% [markdown]
# One message, and it names the rank that made the mistake, the error and the line. The waiting
# ranks were ended. The mend is a line of ordinary Python, and the next run starts at once, with
# fresh processes.


# %%
def divide(rank, world_size):
    share = 1 / (1 + rank)
    dist.barrier()
    return share


simlib.run(divide, world_size=4).results

# %% [markdown]
# If a cell does not end, press the Stop button (the square) above the notebook. The ranks end too.
#
# ## How exercises are checked
#
# An exercise gives you a stub and, directly below, a check. The check calls your function on worlds
# of several sizes and answers in one of three voices. Try all three. The task: return the double of
# `x`, without sending anything. First the stub, as you would find it.

# %%
from simlib.checks import check, messages


def check_double(answer):
    return check(
        "double",
        answer,
        lambda rank, world_size: (torch.tensor([rank + 1]),),  # x on each rank
        lambda xs: [2 * x for x in xs],  # what each rank must return
        messages(lambda xs: 0),  # at most 0 messages
    )


def double(rank, world_size, x):
    raise NotImplementedError()


verdict = check_double(double)
verdict

# %% [markdown]
# Now an answer that is wrong. It is right on one rank: a world of size 1 passes. The check names
# the smallest world that fails, what each rank returned and should have returned, and a likely
# cause where it knows one.


# %%
def double(rank, world_size, x):
    return x + 1


verdict = check_double(double)
verdict

# %% [markdown]
# And a right one. Note what the check counts besides the value. Many tasks in this course could be
# solved by sending everything to everyone. A check lets pass only as many messages and bytes as the
# task needs.


# %%
def double(rank, world_size, x):
    return 2 * x


verdict = check_double(double)
verdict

# %% [markdown]
# ## Exit ticket
#
# Answer without looking up, then unfold.
#
# 1. A rank function contains one `print`. It is run with `world_size=8`. How many lines are
#    printed?
# 2. Rank 3 sets a global variable. Who sees the new value?
# 3. What does a hatched area in the picture mean?
# 4. Two simulated runs of one function take 0.35009 s each, two real ones 0.36 and 0.41 s. Why?
#
# <details><summary>Answers</summary>
#
# 1. Eight: every rank runs the whole function.
# 2. Rank 3 alone. Others see it if rank 3 sends or returns it.
# 3. The rank waits, inside a call, for another rank.
# 4. Virtual time is worked out from the network's numbers; wall time is measured, with all that the
#    machine does besides.
#
# </details>
#
# **Next:** the second half of lesson 00, [your first training](00_your_first_training.ipynb), in which a
# net of your own learns to read digits on two ranks.
#
# ## Appendix: where things are, and a lab
#
# | folder | what is in it |
# |---|---|
# | `notebooks/` | the lessons, with their outputs |
# | `exercises/` | your part: stubs and checks |
# | `solutions/` | one good answer to each exercise; look after you have tried |
# | `simlib/` | the library behind `run` and `simulate`, written to be read |
#
# `START.md` lists all lessons and exercises. Lessons stand alone: open any of them, choose *Restart
# Kernel and Run All Cells*, and it runs to its end.
#
# Here is `tell_everyone` with 8 ranks on Ethernet of 1 Gbit/s. Each rank
# more adds one message and one pause. So when will the last arrow stand?
#
# Below the picture it stands once more as a **lab**: a picture with sliders, for the mouse or the arrow keys. Move
# the number of ranks, and read below the axis when each of these runs ends. Then let rank 0 take twice as long for
# its sleeps. Predict first: who else loses time by that, and how does one see it?

# %%
from simlib import labs

guess = None  # virtual ms at the last arrow?

runs = labs.simulate_sizes(tell_everyone, cluster=simlib.clusters.ethernet_1g(nodes=8))
simlib.guess(guess, 200 + 6 * 50.05, within=0.02)
labs.draw_world_size(runs, 8)

# %% tags=["nbval-ignore-output"]
labs.world_size_lab(runs, 8)

# %% [markdown]
# A staircase with 7 steps. A message and the pause after it take 50.05 ms, and six of them come
# before the last message: it begins at 200 + 6 x 50.05 = 500.3 ms. Each rank more makes the
# staircase one step longer.
#
# Who loses by a slow rank 0? Everybody: the hatched parts of all others grow, though they have no more to do than before.
