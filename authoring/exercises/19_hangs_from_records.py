# %% [markdown]
# # Exercises 19: hangs and slow steps from records
#
# This sheet has four tasks for lesson 19. In tasks 1 and 2 you read what a job that hangs has left. These
# tasks need parts [a](../notebooks/19_hangs_from_records.ipynb) and
# [b](../notebooks/19_hangs_of_many_groups.ipynb) of the lesson. In tasks 3 and 4 you measure overlap in a
# trace, and choose a time-out. These tasks need part [c](../notebooks/19_slow_steps_from_traces.ipynb).
#
# All tasks are about the records of *another* job, which has its own ranks. Each of your ranks gets the
# same records and returns the same answer. No task needs a message.

# %% role="setup"
import random
from collections import Counter

from simlib.checks import Rule, check, collectives, measure, messages

NOTHING = (
    collectives(lambda *given: 0, hint="Every rank has all records."),
    messages(lambda *given: 0, hint="Every rank has all records."),
)


def everywhere(function):
    """What all ranks return, where each of them returns what `function` says of its inputs."""
    return lambda *given: [function(*own) for own in zip(*given, strict=True)]


# %% [markdown]
# ## 1. The call that was left out (★★, 15 minutes, 2 points)
#
# All ranks of a job belong to one group, and all their calls have the same op and size. `lines[r]` is a
# dict for rank r of the job: `{number: line}`. It contains the calls in the rank's buffer. The first
# numbers of the buffers may differ. One rank left out one call, and all others made the same calls.
# Return `(odd, number)`. `odd` is the rank that left out the call. At each number, take the line that
# most ranks have there. `number` is the first number at which the line of `odd` is another one. Some
# buffers may begin after this number. Your function must not change `lines`.


# %% role="answer" question="left_out" points=2
def left_out(rank, world_size, lines):
    """Return (odd, number), two ints; lines is a list of dicts, one for each rank of the job."""
    ### BEGIN SOLUTION
    for number in sorted(set().union(*lines)):
        seen = {r: own[number] for r, own in enumerate(lines) if number in own}
        usual = Counter(seen.values()).most_common(1)[0][0]
        for r, line in seen.items():
            if line != usual:
                return r, number
    ### END SOLUTION


# %% role="check" question="left_out" points=2
def job_of(pattern, steps, size, odd, gone, starts):
    """The buffers of a job: call `gone` is left out by `odd`; each buffer begins at its start."""
    calls = list(pattern) * steps
    own = [calls[: gone - 1] + calls[gone:] if r == odd else calls for r in range(size)]
    return [
        {number: line for number, line in enumerate(one, 1) if number >= starts[r]}
        for r, one in enumerate(own)
    ]


def a_record(rank, world_size):
    records = [
        job_of((20, 24, 31), 6, 4, 2, 8, (1, 3, 2, 4)),
        job_of((7, 9), 9, 5, 0, 5, (2, 1, 1, 3, 4)),
        job_of((11, 13, 17, 11), 5, 6, 5, 11, (4, 13, 1, 2, 3, 10)),
    ]
    return (records[(world_size - 1) % 3],)


def at_first_other_line(lines):
    for number in sorted(set().union(*lines)):
        seen = [own.get(number) for own in lines]
        usual = Counter(line for line in seen if line is not None).most_common(1)[0][0]
        for r, line in enumerate(seen):
            if line not in (None, usual):
                return r, number


def behind(lines):
    """The rank whose last number is the lowest."""
    return min(range(len(lines)), key=lambda r: max(lines[r]))


def where_it_shows(lines):
    return behind(lines), max(map(max, lines))


def one_before(lines):
    r, number = at_first_other_line(lines)
    return r, number - 1


def by_position(lines):
    """Compares the k-th calls that buffers hold, whatever their numbers."""
    rows = [list(own.items()) for own in lines]
    for row in zip(*rows, strict=False):
        usual = Counter(line for _, line in row).most_common(1)[0][0]
        for r, (number, line) in enumerate(row):
            if line != usual:
                return r, number
    return None


def where_all_buffers_begin(lines):
    """The odd rank, and the first other line from the number on that all buffers have."""
    begin = max(map(min, lines))
    return at_first_other_line([{n: own[n] for n in own if n >= begin} for own in lines])


def against_rank_0(lines):
    for number in sorted(lines[0]):
        for r, own in enumerate(lines):
            if number in own and own[number] != lines[0][number]:
                return r, number
    return None


def right_number_other_rank(lines):
    """The rank of which the buffer holds the fewest calls."""
    return min(range(len(lines)), key=lambda r: len(lines[r])), at_first_other_line(lines)[1]


verdict = check(
    "left_out",
    left_out,
    a_record,
    everywhere(at_first_other_line),
    *NOTHING,
    mistakes={
        "At this number the fault shows, because a rank has no call there. The rank left out "
        "the call earlier, where the rank's lines begin to differ.": everywhere(where_it_shows),
        "That is one call too early: there the lines are still equal.": everywhere(one_before),
        "That compares the first calls of all buffers, then the second ones. Buffers begin at different "
        "numbers: compare calls of the same number.": everywhere(by_position),
        "That begins at the first number that all buffers have. The lines differ earlier: use each number "
        "that some of the ranks have.": everywhere(where_all_buffers_begin),
        "That takes rank 0 as right. It may be the odd one: compare with the line of most ranks.": (
            everywhere(against_rank_0)
        ),
        "The number is right. A short buffer is no fault: which rank's line differs?": (
            everywhere(right_number_other_rank)
        ),
    },
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Go through the numbers from the lowest to the highest. At each number, collect the lines of the ranks that
# have this number.
#
# </details>
# <details><summary>Hint 2</summary>
#
# If `found` is a dict `{rank: line}` of one number, `Counter(found.values()).most_common(1)[0][0]`
# is the line of most ranks.
#
# </details>

# %% role="hidden" question="left_out"
seed = 1


def another_record(rank, world_size):
    chance = random.Random(seed + world_size)
    pattern, size = (12, 15, 21, 33, 40)[: 2 + seed % 4], 4 + seed % 3
    odd, gone = chance.randrange(size), chance.randrange(7, 13)
    return (job_of(pattern, 8, size, odd, gone, [chance.randrange(1, 7) for _ in range(size)]),)


print(measure(left_out, another_record))

# %% [markdown]
# ## 2. Two groups in different orders (★★★, 25 minutes, 3 points)
#
# `groups` is a dict. It maps the name of each group to the list of its ranks. Rank r makes one call after
# the other, and `orders[r]` lists the names of the groups of these calls. A call ends when *all* ranks of
# its group are in it. Then each of these ranks goes on to its next call. All calls have the same op and size.
# Which ranks never finish? Return a dict that maps each of these ranks to the name of the group in which the
# rank waits. Return `{}` if all ranks finish. Leave the inputs as they are.


# %% role="answer" question="who_waits" points=3
def who_waits(rank, world_size, orders, groups):
    """Return {rank: name of a group}; orders is a list of lists of names, groups a dict of lists."""
    ### BEGIN SOLUTION
    at = [0] * len(orders)
    goes_on = True
    while goes_on:
        goes_on = False
        for name, ranks in groups.items():
            if all(at[r] < len(orders[r]) and orders[r][at[r]] == name for r in ranks):
                goes_on = True
                for r in ranks:
                    at[r] += 1
    return {r: own[k] for r, (own, k) in enumerate(zip(orders, at, strict=True)) if k < len(own)}
    ### END SOLUTION


# %% role="check" question="who_waits" points=3
FOUR = {"p": [0, 1], "q": [1, 2], "r": [2, 3], "s": [0, 3]}
JOBS = [
    ([["p", "s"], ["q", "p"], ["r", "q"], ["r", "s"]], FOUR),
    (
        [["tp", "dp", "log"], ["tp", "dp", "log"], ["tp", "log", "dp"], ["tp", "end"]],
        {"tp": [0, 1, 2, 3], "dp": [0, 1, 2], "log": [0, 1, 2], "end": [3]},
    ),
    (
        [["a", "b"], ["b", "a", "c"], ["c", "b"], ["a", "c"], ["a", "d"], ["d"]],
        {"a": [0, 1, 3, 4], "b": [0, 1, 2], "c": [1, 2, 3], "d": [4, 5]},
    ),
    ([["x", "y"], ["y", "x"], ["x", "z"], ["z"]], {"x": [0, 1, 2], "y": [0, 1], "z": [2, 3]}),
    ([["p", "q", "p"], ["p", "q"], ["q", "r"], ["r"]], {"p": [0, 1], "q": [0, 1, 2], "r": [2, 3]}),
]


def a_job(rank, world_size):
    """The first finishes, the last lacks a call, all others have a circle and ranks behind it."""
    return JOBS[world_size - 1]


def ends_of(orders, groups, needs=all):
    """How many calls each rank has ended."""
    at, goes_on = [0] * len(orders), True
    while goes_on:
        goes_on = False
        for name, ranks in groups.items():
            there = [r for r in ranks if orders[r][at[r] : at[r] + 1] == [name]]
            if there and needs(r in there for r in ranks):
                goes_on = True
                for r in there:
                    at[r] += 1
    return at


def left_waiting(orders, groups, **more):
    at = ends_of(orders, groups, **more)
    return {r: own[k] for r, (own, k) in enumerate(zip(orders, at, strict=True)) if k < len(own)}


def never_in_order(orders, groups):
    """Every rank that calls in another order than the first rank with the same groups."""
    first, found = {}, {}
    for r, own in enumerate(orders):
        usual = first.setdefault(frozenset(own), own)
        if own != usual:
            found[r] = next(a for a, b in zip(own, usual, strict=False) if a != b)
    return found


def next_group(orders, groups):
    """The group behind the one in which a rank waits; the rank counts as through it."""
    at = ends_of(orders, groups)
    return {
        r: own[k - 1] for r, (own, k) in enumerate(zip(orders, at, strict=True)) if k < len(own)
    }


def most(there):
    there = list(there)
    return 2 * sum(there) > len(there)


def only_circle(orders, groups):
    """The ranks that others wait for and that wait themselves."""
    waits = left_waiting(orders, groups)
    needed = {
        other for r, name in waits.items() for other in groups[name] if waits.get(other) != name
    }
    return {r: name for r, name in waits.items() if r in needed}


def last_groups(orders, groups):
    return {r: orders[r][-1] for r in left_waiting(orders, groups)}


verdict = check(
    "who_waits",
    who_waits,
    a_job,
    everywhere(left_waiting),
    *NOTHING,
    mistakes={
        "Those are the ranks whose order differs from that of others. Other ranks wait for them, and they "
        "hang as well.": everywhere(never_in_order),
        "That is the last call that each rank has ended. Asked is the call in which it waits.": (
            everywhere(next_group)
        ),
        "That lets a call end when most ranks of its group are in it. It ends when all of them are.": (
            everywhere(lambda orders, groups: left_waiting(orders, groups, needs=most))
        ),
        "Those are the ranks for which others wait. Ranks behind the circle never finish, either.": (
            everywhere(only_circle)
        ),
        "The ranks are right. Each of them waits in its first call that does not end, not in its last "
        "call.": everywhere(last_groups),
    },
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Keep a number for each rank: `at[r]` says how many of its calls have ended. Then `orders[r][at[r]]` is the
# group in which rank r waits now. If `at[r] == len(orders[r])`, rank r has finished.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Look at one group after the other. If all its ranks wait in it, let all of them go on. Repeat this until a
# whole round changes nothing.
#
# </details>

# %% role="hidden" question="who_waits"
seed = 1


def another_job(rank, world_size):
    chance = random.Random(seed + world_size)
    size = 5 + seed % 3
    groups = {name: sorted(chance.sample(range(size), 3)) for name in "abcd"}
    orders = [[name for name in "abcdab" if r in groups[name]] for r in range(size)]
    odd = chance.randrange(size)
    orders[odd] = orders[odd][::-1]
    return orders, groups


print(measure(who_waits, another_job))

# %% [markdown]
# ## 3. How much is exposed? (★★, 20 minutes, 3 points)
#
# `kernels` is a list of dicts, one for each kernel of a GPU: `{"name", "ts", "dur", "stream"}`. `ts` is
# its start and `dur` its duration, whole numbers in microseconds. If the name begins with "nccl", the
# kernel communicates. All others compute. Kernels of different streams may run at the same time. Return
# `(exposed, overlap)`. `exposed` is the number of microseconds in which communication runs and nothing
# computes, an int. `overlap` is a float: the share of the communication's time in which something also
# computes. Leave `kernels` as it is.


# %% role="answer" question="exposed_us" points=3
def exposed_us(rank, world_size, kernels):
    """Return (exposed, overlap): an int in microseconds, and a float from 0 to 1.

    At least one kernel of each list communicates.
    """
    ### BEGIN SOLUTION
    sends, computes = set(), set()
    for one in kernels:
        is_sent = one["name"].startswith("nccl")
        (sends if is_sent else computes).update(range(one["ts"], one["ts"] + one["dur"]))
    return len(sends - computes), len(sends & computes) / len(sends)
    ### END SOLUTION


# %% role="check" question="exposed_us" points=3
def kernels_of(*rows):
    return [dict(zip(("name", "ts", "dur", "stream"), row, strict=True)) for row in rows]


TRACES = [
    kernels_of(
        ("gemm", 0, 40, 7),
        ("ncclDevKernel_AllReduce_Sum_f32", 30, 30, 20),
        ("relu", 45, 5, 7),
        ("ncclDevKernel_AllGather", 50, 20, 24),
        ("gemm", 80, 10, 7),
    ),
    kernels_of(
        ("ncclDevKernel_ReduceScatter", 100, 60, 22),
        ("gemm", 90, 30, 7),
        ("gemm", 110, 30, 9),
        ("adam", 170, 25, 7),
        ("ncclDevKernel_AllGather", 200, 8, 22),
        ("ncclDevKernel_AllReduce_Sum_f32", 204, 10, 7),
    ),
]


def a_trace(rank, world_size):
    return (TRACES[world_size % 2],)


def moments(kernels, is_sent):
    found = set()
    for one in kernels:
        if one["name"].startswith("nccl") == is_sent:
            found.update(range(one["ts"], one["ts"] + one["dur"]))
    return found


def both(kernels):
    sends, computes = moments(kernels, True), moments(kernels, False)
    return len(sends - computes), len(sends & computes) / len(sends)


def seconds_of(kernels, is_sent):
    return sum(one["dur"] for one in kernels if one["name"].startswith("nccl") == is_sent)


def counted_twice(kernels):
    """Each kernel by itself: communication of two streams counts twice."""
    computes = moments(kernels, False)
    sent = [set(range(k["ts"], k["ts"] + k["dur"])) for k in kernels if k["name"][:4] == "nccl"]
    covered = sum(len(one & computes) for one in sent)
    whole = sum(map(len, sent))
    return whole - covered, covered / whole


def in_pairs(kernels):
    """Adds up the overlaps of each pair of kernels."""
    moments_of = [set(range(k["ts"], k["ts"] + k["dur"])) for k in kernels]
    sends = [own for own, k in zip(moments_of, kernels, strict=True) if k["name"][:4] == "nccl"]
    others = [own for own, k in zip(moments_of, kernels, strict=True) if k["name"][:4] != "nccl"]
    covered = sum(len(sent & other) for sent in sends for other in others)
    whole = sum(map(len, sends))
    return whole - covered, covered / whole


def of_computing(kernels):
    sends, computes = moments(kernels, True), moments(kernels, False)
    return len(sends - computes), len(sends & computes) / len(computes)


def exposed_share(kernels):
    exposed, overlap = both(kernels)
    return exposed, 1 - overlap


def by_stream(kernels):
    """Takes stream 7 as computing, and all other streams as communication."""
    changed = [one | {"name": "k" if one["stream"] == 7 else "nccl"} for one in kernels]
    return both(changed)


def in_percent(kernels):
    exposed, overlap = both(kernels)
    return exposed, 100 * overlap


def from_durations(kernels):
    """As if all computing ran beside communication."""
    sent, computed = seconds_of(kernels, True), seconds_of(kernels, False)
    return max(0, sent - computed), min(1.0, computed / sent)


def all_communication(kernels):
    sends = moments(kernels, True)
    return len(sends), both(kernels)[1]


def an_int(run, given):
    wrong = next((one for one in run.results if isinstance(one[0], float)), None)
    return wrong and f"The value is right, but {wrong[0]} is a float: an int is asked for."


verdict = check(
    "exposed_us",
    exposed_us,
    a_trace,
    everywhere(both),
    Rule(an_int),
    *NOTHING,
    mistakes={
        "Communication that runs on two streams at the same time counts twice there. Take the moments in "
        "which *some* communication runs.": everywhere(counted_twice),
        "That adds up the overlaps of all pairs of kernels. A moment in which two kernels compute has "
        "then been added twice. Take the moments in which *some* kernel computes.": everywhere(
            in_pairs
        ),
        "`exposed` is right. `overlap` is a share of the communication's time, not of the computing's.": (
            everywhere(of_computing)
        ),
        "`exposed` is right. But `overlap` has the exposed share. Return the other share, in which "
        "something computes.": everywhere(exposed_share),
        "`exposed` is right. `overlap` is in percent: return a float from 0 to 1.": (
            everywhere(in_percent)
        ),
        "That compares the sums of all durations. Durations do not say which kernels run at the same "
        "time: use `ts`, too.": everywhere(from_durations),
        "That tells communication by its stream. A stream may have both: look at the names.": (
            everywhere(by_stream)
        ),
        "`overlap` is right. `exposed` has all the time of communication: take only the part that "
        "nothing covers.": everywhere(all_communication),
    },
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Times are whole microseconds. So you can collect the moments of communication in one set, and those of
# computing in another: `range(ts, ts + dur)`.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `a - b` has the moments of set a that are not in set b. `a & b` has those that are in both.
#
# </details>

# %% role="hidden" question="exposed_us"
seed = 1


def another_trace(rank, world_size):
    chance = random.Random(seed + world_size)
    rows = [("ncclDevKernel_AllReduce_Sum_f32", 20, 30, 20)]
    for k in range(6 + seed % 5):
        name = chance.choice(["gemm", "relu", "ncclDevKernel_AllGather"])
        rows.append((name, chance.randrange(100), chance.randrange(1, 30), 7 + k))
    return (kernels_of(*rows),)


print(measure(exposed_us, another_trace))

# %% [markdown]
# ## 4. Choose a time-out (★★, 15 minutes, 2 points)
#
# In a month, a job had `hangs` real hangs. In other waits, a rank was only slow: `waits_s` lists the
# seconds of each of these waits. You choose the time-out T, one value for the whole month. A wait that is
# **longer** than T ends the job wrongly, which costs `restart_s`. A hang costs T, and then `restart_s`.
# Find the T ≥ 0 with the smallest cost of the month. Return `(T, cost)`, two ints in seconds. If several
# T cost the same, return the smallest. All inputs are ints.


# %% role="answer" question="time_out" points=2
def time_out(rank, world_size, waits_s, hangs, restart_s):
    """Return (T, cost), two ints in seconds; your function must not change waits_s, a list of ints."""
    ### BEGIN SOLUTION
    costs = []
    for T in {0, *waits_s}:
        wrongly = sum(wait_s > T for wait_s in waits_s)
        costs.append((wrongly * restart_s + hangs * (T + restart_s), T))
    cost, T = min(costs)
    return T, cost
    ### END SOLUTION


# %% role="check" question="time_out" points=2
def a_month(rank, world_size):
    months = [
        ([30, 45, 45, 60, 250, 900], 3, 700),
        ([120, 20, 20, 400, 65], 5, 240),
        ([700, 90, 90, 90, 1400], 2, 900),
        ([10, 300, 20, 600], 1, 1200),
        ([50, 80, 200], 4, 90),
    ]
    return months[world_size - 1]


def cost_of(T, waits_s, hangs, restart_s, strikes=lambda wait_s, T: wait_s > T):
    wrongly = sum(strikes(wait_s, T) for wait_s in waits_s)
    return wrongly * restart_s + hangs * (T + restart_s)


def cheapest(waits_s, hangs, restart_s, cost=cost_of, last=False, among=None):
    tried = among or [0, *waits_s]
    costs = {T: cost(T, waits_s, hangs, restart_s) for T in tried}
    least = min(costs.values())
    T = (max if last else min)(T for T in costs if costs[T] == least)
    return T, least


def longest(waits_s, hangs, restart_s):
    return max(waits_s), cost_of(max(waits_s), waits_s, hangs, restart_s)


def at_once(T, waits_s, hangs, restart_s):
    return cost_of(T, waits_s, hangs, restart_s, strikes=lambda wait_s, T: wait_s >= T)


def no_restart(T, waits_s, hangs, restart_s):
    return cost_of(T, waits_s, hangs, restart_s) - hangs * restart_s


def one_hang(T, waits_s, hangs, restart_s):
    return cost_of(T, waits_s, 1, restart_s)


def never_zero(waits_s, hangs, restart_s):
    return cheapest(waits_s, hangs, restart_s, among=waits_s)


verdict = check(
    "time_out",
    time_out,
    a_month,
    everywhere(cheapest),
    *NOTHING,
    mistakes={
        "That T ends no wait wrongly. But each hang then costs the longest wait: is one restart not "
        "cheaper?": everywhere(longest),
        "A wait of exactly T does not end the job: only a longer one does.": everywhere(
            lambda *given: cheapest(
                *given, cost=at_once, among=[0, *given[0], *(w + 1 for w in given[0])]
            )
        ),
        "T is right. A hang costs a restart, too, when the time-out has struck.": everywhere(
            lambda *given: cheapest(*given, cost=no_restart)
        ),
        "That counts one hang. There are `hangs` of them, and each costs T.": everywhere(
            lambda *given: cheapest(*given, cost=one_hang)
        ),
        "T = 0 is allowed, and is the cheapest where hangs are many and restarts cheap.": (
            everywhere(never_zero)
        ),
    },
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# If T grows from one wait to the next, nothing gets cheaper in between. So the best T is 0 or one of the
# waits.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `min((cost, T) for ...)` takes the smallest cost, and of equal costs the smallest T.
#
# </details>

# %% role="hidden" question="time_out"
seed = 1


def another_month(rank, world_size):
    chance = random.Random(seed + world_size)
    waits_s = [chance.randrange(5, 90) * 10 for _ in range(5 + seed % 4)]
    return waits_s, 1 + seed % 6, chance.randrange(20, 900)


print(measure(time_out, another_month))
