# %% [markdown]
# # 00 Start here
#
# A large model is trained by many processes at once, on many machines. In this course you write what
# **one** of these processes does. You then run as many of them as you like from a notebook cell, on your
# own machine. After every run you see which process sent which message to which other process.
#
# In the next 25 minutes you will
#
# - see whether this machine is ready,
# - start four processes from one cell,
# - read the picture of a run,
# - run the same function on a cluster that you do not have,
# - break a run, and then continue,
# - see the three kinds of answer that an exercise check can give.
#
# Run the cells from top to bottom with Shift+Enter. Lessons ask you to **predict** before you run: where
# a cell says `guess = None`, replace the `None` with your guess. If your guess is a number, or one of a
# few words, the cell says whether it is right. Nobody else reads your guess. A wrong guess teaches you
# more than a cell that you only read. Where you have to *write* code, it is one or two lines, and the
# cell says whether they are right.
#
# ## Is this machine ready?
#
# The course needs Python, PyTorch, and `torch.distributed`, which is the part of PyTorch through which
# processes communicate. A *backend* does the communication itself. Our backend is **Gloo**: it comes
# with PyTorch, and it needs neither a GPU nor a network. The next cell looks for all of them and prints
# what it found.

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
# A process that takes part in a run is called a **rank**. Each rank has a number: 0, 1, 2 and so on. The
# number of ranks is the **world size**. You write down once what the ranks do, as a function of these
# two numbers. We call it a *rank function*.
#
# `simlib.run` calls the function on every rank, each in its own process. Here every rank prints one line
# and returns one number. How many lines will you see below the cell? What will `run.results` contain?
# Guess, then run. (The first run in a notebook takes some seconds, because it loads PyTorch for all
# later runs.)

# %%
guess = None  # how many lines?


def hello(rank, world_size):
    print("I am rank", rank, "of", world_size)
    return rank * rank


run = simlib.run(hello, world_size=4)
simlib.guess(guess, len(run.results))
run.results

# %% [markdown]
# One `print` gave four lines, because every rank runs the **whole** function. The ranks differ only in
# their number. This style is called *single program, multiple data* (SPMD). Nearly all distributed
# training is written in it.
#
# The number in brackets at the start of a line says which rank printed it. The lines are sorted by rank,
# not by time. `run.results` contains what the ranks returned: `results[3]` comes from rank 3.
#
# **Now you write it.** The ranks form a ring: the neighbour of rank 0 is rank 1, and so on, and the
# neighbour of the last rank is rank 0. Return the number of this rank's neighbour. It must be right for
# every world size.


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
# The function below changes a variable of this notebook. There are four ranks, and each rank adds its
# own number. What is the value of `counter` in the notebook after the run?

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
# Each rank got its own copy of the function and of the variables that the function uses. It changed its
# copy, and ended. Ranks share no memory, neither with each other nor with the notebook. So a value can
# leave a rank in exactly two ways: the rank **returns** it, or the rank **sends** it to another rank.
#
# Each rank also has its own random numbers. Those of torch are the same on all ranks and in every run,
# unless the rank function sets another seed (`torch.manual_seed(rank)`). Those of `random` and `numpy`
# differ between ranks, as they do in newly started processes.
#
# ## The picture of a run
#
# Now the ranks communicate. Rank 0 works for a fifth of a second. (It sleeps, which takes just as long.)
# Then it sends one number to each other rank, one rank after the other, with a pause after each message.
# Each of the other ranks first receives its number, and then works for a twentieth of a second.
# `dist.send(x, dst=1)` means "send x to rank 1". `dist.recv(holder, src=0)` means "receive from rank 0,
# into the tensor `holder`".
#
# If the last line of a cell is just the name of a run, the notebook draws the run. What will ranks 1, 2
# and 3 be doing during the first 200 ms?

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
# How to read the picture:
#
# - Every rank has a **lane** and a **colour**. Both are the same in all pictures of this course. Rank 0
#   is on top. Time runs from left to right, and its unit is given below the axis. ("Real" ranks are
#   processes of this machine, and their times are measured.)
# - The lanes begin at different times, because processes do not start at the same moment. Time 0 is
#   where the first rank begins.
# - **Filled** means that the rank computes. (Here it sleeps.)
# - **Hatched** means that the rank is inside a call and waits for another rank. Ranks 1, 2 and 3 wait
#   for at least 200 ms: they have nothing to do until rank 0 has finished its work and sends to them. A
#   large part of distributed training is about making such areas small.
# - **Pale** means that the rank waits for no other rank any more, but the data are still on their way
#   (*transferring*). Single numbers travel too fast to see this here. Later pictures show more of it. If
#   a fill is hardly visible, the rank is inside a call, but does not wait yet.
# - A thin **line** across a lane marks where a call begins. The calls of rank 0 are so short that you
#   see nothing else of them.
# - An **arrow** is a message. It runs from the sender's call to the end of the receiver's call. These
#   three arrows are nearly vertical, because the receivers were already waiting.
#
# As text, the same run is a table without times. The table is the same in every repeat. You can also get
# everything in it as data: the messages and bytes of each rank, and every single call, with the line of
# your program that made it. (A number of type float32 takes 4 bytes.)

# %%
print(run)
print("messages by rank:", run.messages)
print("bytes by rank:   ", run.bytes_sent)
first = run.trace.of_rank(1)[0]
print("rank 1 called", first.call, "with", first.nbytes, "bytes, in the line", first.site.line_text)

# %% [markdown]
# You can also **play** the picture. Press the triangle, or drag through the picture. Later events are
# pale, and a message on its way is a dot. Below the picture you read what each rank does at that moment.
# Hover over a call to see its size in bytes and the line of your program that made it. If you only read
# this page and cannot run it, you see the still picture again.

# %%
run.play()

# %% [markdown]
# **Now you write it.** The last rank sends the tensor `x` to rank 0, and rank 0 returns the number that
# it received. You need four lines, with an `if`.


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
# `simlib.run` uses this machine and measures wall-clock time. `simlib.simulate` calls the same function,
# unchanged, on a **modelled cluster**. Its ranks compute with real tensors and exchange them. But their
# time is calculated, not measured. Each rank has a **virtual clock**. Each message moves that clock
# forward by the time that the modelled network needs for it. `time.sleep(0.2)` moves it by 0.2 s, and
# you do not wait.
#
# The next cell runs `tell_everyone` three times with `run` and three times with `simulate`, and prints
# how many seconds each run took. Rank 0 sleeps for 200 ms and then three times for 50 ms, which is 350
# ms in all. How many of the six times will be equal? Will the results be equal?

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
# The results are the same. The times of `run` differ in every repeat, because your machine also does
# other things. The times of `simulate` are equal to the last digit, today and on every other machine.
#
# Every digit also has a reason. Unless you name another cluster, the ranks are on computers that are
# connected by 10 Gbit/s Ethernet. On this network it takes 30 microseconds (us) before anything of a
# message arrives. Then its bytes arrive, 1.25 billion per second. So a message of 4 bytes takes 30.0032
# us. Three messages and the sleeps take 0.35 + 3 x 0.0000300032 = 0.3500900096 s. (The very last digits
# may come from rounding.)
#
# Now take a slower network and 1,000 ranks. A laptop could hardly start so many processes. The network
# is Ethernet of 1 Gbit/s, where it takes 50 us before anything of a message arrives. How long will the
# run take on this cluster? And how long will you wait?

# %%
guess = None  # virtual seconds?

cluster = simlib.clusters.ethernet_1g(nodes=1000)
run = simlib.simulate(tell_everyone, world_size=1000, cluster=cluster)
print("messages sent by rank 0:", run.messages[0])
print(f"rank 999 returned {run.results[999]}; virtual time {run.time_s:.6f} s")
simlib.guess(guess, run.time_s, within=0.1)

# %% [markdown]
# You waited some seconds at most. On the modelled cluster the run takes 50 seconds. Almost all of this
# time is the pauses of rank 0, which sends to 999 ranks one after the other. Lesson 04 shows how a
# message reaches 1,000 ranks in 10 steps.
#
# **Now you write it.** A run ends when its last rank ends. Let a run of 4 ranks take exactly one virtual
# second, and let only rank 3 work. You need one or two lines.


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
# The virtual second cost you no waiting.
#
# </details>
#
# You will use both engines, often with the same function:
#
# | | `simlib.run` | `simlib.simulate` |
# |---|---|---|
# | ranks | processes of this machine, a handful | modelled, up to 4,096 |
# | network | this machine's memory | the one you name |
# | time | wall clock, differs in every run | a virtual clock, the same every time |
# | good for | what your program really does here | "what if", large worlds, exact times |
#
# Remember one thing: computing takes **no** virtual time, unless you give the cluster a device with a
# speed. Here only messages and sleeps move the clock. Pictures of simulated runs say *virtual time*
# below the axis.
#
# ## When a rank fails
#
# You will write many programs that go wrong: that is what the course is for. In the next program, rank 2
# fails while the other ranks wait for it. On a real cluster such a job often shows no error at all: it
# just stops making progress. What do you expect here? (The error below is intended. Run All continues
# after it.)


# %% tags=["raises-exception"]
def divide(rank, world_size):
    share = 1 / (2 - rank)  # rank 2 divides by zero
    dist.barrier()  # wait here until every rank has arrived
    return share


simlib.run(divide, world_size=4)

# %% [markdown]
# There is one error message. It names the rank that made the mistake, the error and the line. `simlib`
# has ended the ranks that were waiting. To fix the program, change one line of ordinary Python. The next
# run starts at once, with new processes.


# %%
def divide(rank, world_size):
    share = 1 / (1 + rank)
    dist.barrier()
    return share


simlib.run(divide, world_size=4).results

# %% [markdown]
# If a cell does not end, press the Stop button (the square) above the notebook. This also ends the ranks.
#
# ## How exercises are checked
#
# An exercise gives you a stub, which is an unfinished function, and a check directly below it. The check
# calls your function with several world sizes. It gives one of three kinds of answer. Try all three. The
# task is to return twice `x` without sending anything. First try the stub as you would find it.

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
# Now try a wrong answer. It is right for one rank, so a world of size 1 passes. The check names the
# smallest world size that fails. It shows what each rank returned and what it should have returned. If
# it knows a likely cause, it names that too.


# %%
def double(rank, world_size, x):
    return x + 1


verdict = check_double(double)
verdict

# %% [markdown]
# And now a right answer. Note what the check counts besides the value. You could solve many tasks in
# this course by sending everything to all ranks. But a check accepts only as many messages and bytes as
# the task needs.


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
# 1. A rank function contains one `print`. You run it with `world_size=8`. How many lines are printed?
# 2. Rank 3 sets a global variable. Which ranks see the new value?
# 3. What does a hatched area in the picture mean?
# 4. Two simulated runs of one function take 0.35009 s each. Two real runs of it take 0.36 s and 0.41 s.
#    Why?
#
# <details><summary>Answers</summary>
#
# 1. Eight lines are printed, because every rank runs the whole function.
# 2. Only rank 3 sees it. Other ranks see it only if rank 3 sends it.
# 3. The rank is inside a call and waits for another rank.
# 4. Virtual time is calculated from the network's numbers, so it is the same in every run. Wall-clock
#    time is measured, and it includes everything else that the machine does.
#
# </details>
#
# **Next:** the second half of lesson 00, [your first training](00_your_first_training.ipynb), in which a
# neural network of your own learns to read digits on two ranks.
#
# ## Appendix: where things are, and a lab
#
# The list of files on the left shows two folders:
#
# | folder | what is in it |
# |---|---|
# | `notebooks/` | the lessons, with their outputs |
# | `exercises/` | your part: stubs and checks |
#
# Below the folders you see `START.md`, which lists all lessons and exercises. The list does not show the
# other folders of the course. Two of them are for you, too:
#
# | folder | what is in it | how to open it |
# |---|---|---|
# | `solutions/` | one good answer to each exercise; look after you have tried | follow a link in `START.md` |
# | `simlib/` | the library behind `run` and `simulate`, written to be read | if you started with `make lab`, choose *File*, *Open from Path...* and type `simlib/facade.py`, for example |
#
# No lesson needs variables of another: open any of them, choose *Restart Kernel and Run All Cells*, and
# it runs to its end.
#
# The next picture shows `tell_everyone` with 8 ranks on Ethernet of 1 Gbit/s. Each additional rank adds
# one message and one pause. So at what time will the last arrow begin?
#
# Below the picture you find it again as a **lab**, which is a picture with sliders. Move them with the
# mouse or the arrow keys. Change the number of ranks, and read below the axis when each of these runs
# ends. Then let rank 0 sleep twice as long. Predict first: which other ranks lose time because of that,
# and how can you see it?

# %%
from simlib import labs

guess = None  # virtual ms at the last arrow?

runs = labs.simulate_sizes(tell_everyone, cluster=simlib.clusters.ethernet_1g(nodes=8))
simlib.guess(guess, 200 + 6 * 50.05, within=0.02)
labs.draw_world_size(runs, 8)

# %% tags=["nbval-ignore-output"]
labs.world_size_lab(runs, 8)

# %% [markdown]
# The arrows form a staircase with 7 steps. A message and the pause after it take 50.05 ms. Six of them
# come before the last message, so the last message begins at 200 + 6 x 50.05 = 500.3 ms. Each additional
# rank makes the staircase one step longer.
#
# All other ranks lose time when rank 0 is slow. Their hatched areas grow, although they have no more
# work than before.
