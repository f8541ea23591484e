"""Jobs on several hosts, by mpiexec over ssh and by Slurm, on the practice cluster."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from jobs import WAIT_S, failure, processes_of, wait_until
from kernel_client import Kernel
from test_submit import pairs_and_survivors, resumed, sleeping
from torch.nn.parallel import DistributedDataParallel

import simlib
from simlib.cluster.practice import PracticeCluster
from simlib.core.record.returned import LOST

HOSTS = ["node1", "node2", "node3", "node4"]
ROOT = Path(__file__).resolve().parents[2]
ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def login(needs_practice_cluster):
    """The words that run a program on the login host of a practice cluster with Slurm."""
    needs_practice_cluster(slurm=True)
    with PracticeCluster(len(HOSTS), slurm=True) as cluster:
        yield cluster.launcher("login")


@pytest.fixture
def submit(login, tmp_path):
    """Submits a function to nodes, by mpiexec on the login host, or by Slurm."""
    mpiexec = [*login, Path(sys.executable).with_name("mpiexec")]

    def submit(function, hosts=HOSTS[:2], world_size=None, **options):
        to = simlib.Mpiexec(hosts=hosts, launcher=mpiexec, time_limit=WAIT_S, **options)
        return simlib.submit(function, world_size or len(hosts), to=to, folder=tmp_path)

    def by_slurm(function, nodes, args=(), queue=None, **options):
        to = simlib.Slurm(nodes=nodes, time_limit=WAIT_S, login=login, **(queue or {}))
        return simlib.submit(function, nodes, args, to=to, folder=tmp_path, **options)

    submit.by_slurm = by_slurm
    return submit


def around(rank, world_size):
    """A sum, and a message from each rank to the next."""
    x = torch.tensor([rank + 1])
    dist.all_reduce(x)
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    sent = dist.isend(torch.full((4,), float(rank)), right)
    got = torch.zeros(4)
    dist.recv(got, left)
    sent.wait()
    print("rank", rank, "has heard", int(got[0]))
    return x.item()


def is_as_on_one_machine(run, hosts, world_size):
    """Results, output and trace of `around` are those of `simlib.run`."""
    local = simlib.run(around, world_size)
    assert run.results == local.results == [world_size * (world_size + 1) // 2] * world_size
    assert run.output == local.output
    assert run.table() == local.table()
    assert hosts == HOSTS[:world_size]
    assert len(run.trace.messages) == world_size
    for message in run.trace.messages:
        assert message.send.site.line_text.startswith("sent = dist.isend")
        assert message.recv.end_s > message.send.post_s - 2 * run.trace.clock_error_s


def hosts_of(job):
    return [clock["host"] for clock in job.clocks]


def test_two_jobs_at_once_one_of_them_cancelled_by_a_kernel_that_found_it(submit, tmp_path):
    first, second = submit(sleeping, HOSTS[2:]), submit(around, HOSTS)
    is_as_on_one_machine(second.result(WAIT_S), hosts_of(second), 4)
    assert first.status == "active"
    wait_until(lambda: first.path.joinpath("rank-1.out").exists())
    again = simlib.jobs(tmp_path)[0]
    assert again.name == first.name
    again.cancel()
    assert first.status == again.status == "cancelled"
    assert f"{first.name} was cancelled" in str(failure(first))
    wait_until(lambda: not processes_of(first))


def test_a_job_of_a_notebook_whose_kernel_is_killed(login, tmp_path):
    """A new kernel finds it, with the lines of cells that it has never run."""
    go = tmp_path / "go"
    launcher = [*login, str(Path(sys.executable).with_name("mpiexec"))]
    cells = [
        "import os, time, simlib, torch, torch.distributed as dist\nfactor = 10",
        f"""
        def main(rank, world_size):
            x = torch.tensor([rank + 1])
            dist.all_reduce(x)
            while not os.path.exists({str(go)!r}):
                time.sleep(0.05)
            print("from rank", rank)
            return x.item() * factor
        """,
        f"""
        to = simlib.Mpiexec(hosts={HOSTS[:2]}, launcher={launcher}, time_limit={WAIT_S})
        job = simlib.submit(main, 2, to=to, folder={str(tmp_path / "jobs")!r})
        print(job.name)
        """,
    ]
    kernel = Kernel()
    try:
        *_, name = [kernel.cell(textwrap.dedent(cell), WAIT_S) for cell in cells]
        (job,) = simlib.jobs(tmp_path / "jobs")
        assert name == f"{job.name}\n"
        wait_until(lambda: job.path.joinpath("rank-1.json").exists())
        os.kill(kernel.pid, signal.SIGKILL)
    finally:
        kernel.close()
    go.touch()
    kernel = Kernel()
    try:
        fetch = f"""
        import simlib
        (job,) = simlib.jobs({str(tmp_path / "jobs")!r})
        run = job.result({WAIT_S})
        print(run.results, run.output, job.status)
        print(run.trace.of_rank(0)[0].site.line_text)
        """
        printed = kernel.cell(textwrap.dedent(fetch), WAIT_S).splitlines()
    finally:
        kernel.close()
    assert printed == [
        "[30, 30] ['from rank 0\\n', 'from rank 1\\n'] done",
        "dist.all_reduce(x)",
    ]


def test_training_on_two_hosts_gives_the_weights_of_run(submit):
    steps = 3

    def train(rank, world_size):
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.randn(8, 4)[rank::world_size]
        for _ in range(steps):
            optimizer.zero_grad()
            model(data).pow(2).mean().backward()
            optimizer.step()
        print(os.uname().nodename, os.environ["LOCAL_RANK"])
        return [p.detach() for p in model.parameters()]

    job = submit(train)
    run = job.result(WAIT_S)
    assert run.output == ["node1 0\n", "node2 0\n"]
    for here, there in zip(simlib.run(train, 2).results, run.results, strict=True):
        assert all(torch.equal(*pair) for pair in zip(here, there, strict=True))
    # The nodes have one clock, in truth.
    first, second = job.clocks
    assert (first["host"], first["error_s"]) == ("node1", 0)
    assert 0 < second["error_s"] < 0.1
    assert abs(second["offset_s"]) <= second["error_s"] == run.trace.clock_error_s


@pytest.mark.parametrize(
    "how", [{"launcher": "srun"}, {"launcher": "mpiexec"}, {"mpi": "pmi2"}], ids=str
)
def test_slurm(submit, how):
    job = submit.by_slurm(around, 2, queue=how)
    again = simlib.Job(job.path)
    is_as_on_one_machine(again.result(WAIT_S), hosts_of(again), 2)
    assert job.status == again.status == "done"
    assert (job.path / "meeting.json").exists() == (how == {"launcher": "srun"})


LAUNCHERS = pytest.mark.parametrize(
    "launcher", ["srun", pytest.param("mpiexec", marks=pytest.mark.slow)]
)


def ask_the_dead(rank, world_size):
    if rank == 1:
        time.sleep(WAIT_S)
    try:
        dist.recv(torch.ones(1), src=1)
    except RuntimeError as error:
        return LOST.search(str(error)) is not None


@LAUNCHERS
def test_ranks_on_other_nodes_outlive_a_death(submit, launcher):
    """Their own, or one that was asked for."""
    queue = {"launcher": launcher}
    job = submit.by_slurm(pairs_and_survivors, 4, queue=queue, on_death="continue")
    run = job.result(WAIT_S)
    assert hosts_of(job) == HOSTS
    assert run.results == [(True, 15.0), None, ("done", 15.0), ("done", 15.0)]
    assert list(run.deaths) == [1]
    assert run.table() == simlib.run(pairs_and_survivors, 4, on_death="continue").table()
    wait_until(lambda: not processes_of(job))
    job = submit.by_slurm(ask_the_dead, 3, queue=queue, kill={1: 0.3}, on_death="continue")
    run = job.result(WAIT_S)
    assert run.results == [True, None, True]
    assert list(run.deaths) == [1]
    assert run.deaths[1] >= 0.3 - 2 * run.trace.clock_error_s


@LAUNCHERS
def test_slurm_starts_the_ranks_anew_in_the_nodes_that_it_gave(submit, tmp_path, launcher):
    job = submit.by_slurm(
        resumed, 3, [tmp_path / "saved"], {"launcher": launcher}, restarts=1, min_ranks=2
    )
    run = job.result(WAIT_S)
    assert job.status == "done"
    assert run.results == [("1", 2, 2)] * 2
    assert [list(attempt.deaths) for attempt in run.attempts] == [[2], []]
    wait_until(lambda: not processes_of(job))


def test_slurm_cancelled_in_the_queue_and_running(submit, tmp_path, capfd):
    """A job that waits says why, and begins when it is its turn."""
    first, second, third = (
        submit.by_slurm(function, 4, queue={"extra": "--exclusive"})
        for function in (sleeping, place, place)
    )
    wait_until(lambda: first.status == "active")
    assert second.status == third.status == "queued"
    usual = "(the nodes that the job needs are busy|other jobs come before this job)"
    with pytest.raises(TimeoutError, match=f"place-1 is still queued after 0 s: {usual}"):
        second.result(0)
    looks = threading.Thread(target=second.follow)
    looks.start()
    said = []
    wait_until(lambda: said.append(capfd.readouterr().err) or "place-1 has been" in "".join(said))
    for job in (third, first):
        job.cancel()
        assert job.status == "cancelled"
        assert f"{job.name} was cancelled" in str(failure(job))
    wait_until(lambda: not processes_of(first))
    looks.join()
    assert second.result(WAIT_S).results == HOSTS
    assert [job.name for job in simlib.jobs(tmp_path)] == ["sleeping-1", "place-1", "place-2"]


SCRIPT = """\
import os, sys
told = [os.environ[name] for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")]
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(x)
store = dist.TCPStore(
    os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), dist.get_world_size(),
    is_master=told[0] == "0",
)
store.set(told[0], os.uname().nodename)
dist.barrier()
print(os.uname().nodename, *told, x.item(), store.get("0").decode(), *sys.argv[1:])
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("where", ["--hosts node1,node2", "--slurm --nodes 2"])
def test_a_script_is_submitted_followed_and_told_from_the_command_line(login, tmp_path, where):
    """Its ranks meet by MASTER_ADDR and MASTER_PORT, as those of torchrun may."""
    (tmp_path / "train.py").write_text(SCRIPT)

    def on_login(words):
        command = [*login, sys.executable, "-m", "simlib", *words.split()]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=ENVIRON)
        assert done.returncode == 0, done.stderr
        return done.stdout

    submitted, *lines = on_login(f"submit -n 4 {where} --follow train.py -x").splitlines()
    assert "train-1 is submitted" in submitted
    assert sorted(lines) == [
        "[0] node1 0 0 2 0 10 node1 -x",
        "[1] node1 1 1 2 0 10 node1 -x",
        "[2] node2 2 0 2 1 10 node1 -x",
        "[3] node2 3 1 2 1 10 node1 -x",
    ]
    assert "train.py on 4 real ranks" in on_login("result train-1")


def needy(rank, world_size):
    print(os.environ["LINE"], os.getcwd(), os.environ["SLURM_CPUS_PER_TASK"])
    assert "start.py" in Path("/proc/1/cmdline").read_text()  # the container's first process
    return os.environ["TOLD"], os.environ["BY_LINE"], torch.get_num_threads()


def test_ranks_of_slurm_have_what_they_need(submit):
    needs = {
        "setup": ["module() { export LINE=$1; }", "module loaded", "BY_LINE=$(uname -n)"],
        "env": {"TOLD": "this, and that", "BY_LINE": ""},
        "cpus_per_rank": 2,
        "memory": "100M",
        "container": "unshare --mount --pid --fork --kill-child --mount-proc",
        "working_dir": "/usr",
    }
    job = submit.by_slurm(needy, 2, queue=needs)
    run = job.result(WAIT_S)
    assert run.results == [("this, and that", host, 2) for host in hosts_of(job)]
    assert run.output == ["loaded /usr 2\n"] * 2


def test_a_line_that_fails_on_one_host(submit):
    job = submit(place, setup=["test $(uname -n) = node1 || { echo no module gcc; false; }"])
    error = str(failure(job))
    assert "node2 could not carry out the line" in error
    assert error.endswith("of setup (exit code 1): no module gcc")
    wait_until(lambda: not processes_of(job))


def place(rank, world_size):
    return os.uname().nodename


@pytest.mark.parametrize(
    ("nodes", "queue", "words"),
    [
        (9, {}, "the queue has refused the job: the job asks for more cores or nodes than"),
        (2, {"partition": "gpu"}, "there is no such partition"),
        (2, {"extra": "--gres=gpu:1"}, "no node has the .*\n    sbatch: error: Invalid"),
        (2, {"extra": "--frobnicate"}, "no such option: .*\n    sbatch: unrecognized opt"),
    ],
)
def test_what_slurm_refuses(submit, tmp_path, nodes, queue, words):
    with pytest.raises(simlib.JobError, match=words):
        submit.by_slurm(sleeping, nodes, queue=queue)
    assert {job.status for job in simlib.jobs(tmp_path)} == {"failed"}


def where(rank, world_size):
    return os.uname().nodename, int(os.environ["LOCAL_RANK"])


@pytest.mark.parametrize("text", ["node1:2\r\nnode2\r\n", "# mine\nnode1 slots=2\n\nnode2 slots=1"])
def test_each_host_gets_the_ranks_that_the_file_gives_it(submit, tmp_path, text):
    (tmp_path / "hosts").write_bytes(text.encode())
    job = submit(where, None, 3, hostfile=str(tmp_path / "hosts"))
    assert job.result(WAIT_S).results == [("node1", 0), ("node1", 1), ("node2", 0)]
