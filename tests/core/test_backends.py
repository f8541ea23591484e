"""What ranks talk by: the table of backends, the same programs by each, ops that end on a GPU."""

import gc
import mmap
from pathlib import Path
from types import SimpleNamespace

import backend_programs as programs
import pytest
import torch
import torch.distributed as dist
from jobs import by_job
from quick import one_of
from torch.utils._python_dispatch import TorchDispatchMode

import simlib
from simlib.cli import main as command
from simlib.cluster.backends import MPI
from simlib.core.record import pending
from simlib.core.record.arguments import Place, check_collective, check_message
from simlib.core.record.group import RecordingGroup
from simlib.core.record.oplog import (
    FingerprintTable,
    OpLogWriter,
    create_shared_memory,
    size_of_table,
)
from simlib.core.record.oplog_reader import OpLogReader
from simlib.core.record.pending import StreamEnds
from simlib.core.record.recorder import Recorder
from simlib.core.record.transports.backends import BACKENDS, GLOO, NCCL, OPS, Transport

WAIT_S = 240
DOCS = Path(__file__).resolve().parents[2] / "docs"


def by_gloo(function):
    return simlib.run(function, 2)


def by_mpi(function):
    return by_job(function, 2, backend="mpi4py")


BY = {"gloo": by_gloo, "mpi4py": by_mpi}


# The table


@pytest.mark.parametrize(("name", "able"), [("gloo", GLOO), ("mpi4py", MPI)])
def test_the_table_says_what_the_backend_does(name, able):
    first, second = BY[name](programs.tried).results
    assert first == second
    assert first["methods"] == set(OPS) - set(able.lacks)
    for method, dtypes in (
        ("send", able.sends),
        ("broadcast", able.carries),
        ("allreduce", able.reduces),
    ):
        listed = {str(t) for t in programs.DTYPES if dtypes is None or t in dtypes}
        assert first[method] == listed, method
    assert first["ops"] == set(able.reduce_ops)
    refused = None if name == "gloo" else "mpi4py has no monitored_barrier: call barrier()"
    assert first["refused"] == refused


def rows():
    """The table of the docs, from the table."""
    columns = {
        "gloo, CPU": BACKENDS["gloo"].capabilities["cpu"],
        "gloo, GPU": BACKENDS["gloo"].capabilities["cuda"],
        "nccl, GPU": BACKENDS["nccl"].capabilities["cuda"],
        "mpi4py, CPU": BACKENDS["mpi4py"].capabilities["cpu"],
    }
    yield f"| op | {' | '.join(columns)} |"
    yield "|---" * (1 + len(columns)) + "|"
    for method, words in OPS.items():
        cells = ["no" if method in able.lacks else "yes" for able in columns.values()]
        yield f"| {words} | {' | '.join(cells)} |"
    cells = ["yes" if able.largest_tag else "no" for able in columns.values()]
    yield f"| tags | {' | '.join(cells)} |"
    cells = ["yes" if "BAND" in able.reduce_ops else "no" for able in columns.values()]
    yield f"| bitwise reductions | {' | '.join(cells)} |"
    yield "| sub-groups, async ops | yes | yes | yes | yes |"


def test_the_docs_have_the_table():
    pages = [page.read_text(encoding="utf-8") for page in DOCS.glob("using-simlib*.md")]
    table = "\n".join(rows())
    assert any(table in page for page in pages), table


# The same programs by every backend


def record(run):
    """What was recorded, rank by rank, without times; groups by their members."""
    return [
        [
            (op.kind, op.group.ranks, op.peer, op.tag, op.nbytes, op.shapes, op.dtype)
            + (op.reduce_op, op.splits, op.async_op, op.any_source, op.site.lineno)
            for op in run.trace.of_rank(rank)
        ]
        for rank in range(2)
    ]


def test_right_programs_give_the_same_results_and_records():
    gloo, mpi = by_gloo(programs.all_right), by_mpi(programs.all_right)
    assert len(programs.RIGHT) == len(gloo.results[0])
    for program in gloo.results[0]:
        got = [[result[program] for result in run.results] for run in (gloo, mpi)]
        assert got[0] == got[1], program
    assert record(gloo) == record(mpi)
    assert gloo.findings == mpi.findings == []
    assert all(op.end_s is not None for op in mpi.trace.ops)


def test_programs_that_are_careless_have_the_same_findings():
    gloo, mpi = (run(programs.careless) for run in BY.values())
    assert [str(finding) for finding in gloo.findings] == [str(finding) for finding in mpi.findings]
    assert {finding.kind for finding in gloo.findings} >= {"race"}


@pytest.mark.parametrize("program", one_of(3, {one.__name__: one for one in programs.WRONG}))
def test_wrong_programs_are_told_in_the_same_words(program):
    errors = []
    for run in BY.values():
        with pytest.raises(simlib.SimlibError) as caught:
            run(program)
        errors.append(caught.value)
    gloo, mpi = errors
    assert (type(gloo), str(gloo)) == (type(mpi), str(mpi))


# Refused before anything starts, or by the host


def main(rank, world_size):
    pass


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: simlib.run(main, 2, backend="mpi4py"), "submit(..., to=simlib.Mpiexec())"),
        (lambda: simlib.run(main, 2, backend="mpi4py"), "mpiexec -n 2 python -m simlib.mpi"),
        (lambda: simlib.run(main, 2, backend="smoke"), "must be 'gloo', 'nccl' or 'mpi4py'"),
        (lambda: simlib.run(main, 2, backend=["gloo"]), "must be 'gloo', 'nccl' or 'mpi4py'"),
        (lambda: simlib.submit(main, 2, backend="mpi"), "must be 'gloo', 'nccl' or 'mpi4py'"),
        (
            lambda: simlib.submit(main, 2, to=simlib.Slurm(2), backend="mpi4py"),
            "simlib.Slurm(..., launcher='mpiexec')",
        ),
        (
            lambda: simlib.submit(main, 2, on_death="continue", backend="mpi4py"),
            "on_death='end', or backend='gloo'",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(call, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(simlib.InvalidCallError) as caught:
        call()
    assert sentence in str(caught.value)
    assert list(tmp_path.iterdir()) == []


NO_GPU = "there is no GPU that torch"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nccl_is_refused_where_there_is_no_gpu(tmp_path, capsys):
    with pytest.raises(simlib.InvalidCallError) as caught:
        simlib.run(main, 1, backend="nccl")
    assert f"backend='nccl' is not possible on this machine: {NO_GPU}" in str(caught.value)
    script = tmp_path / "script.py"
    script.write_text("")
    assert command(["run", "-n", "1", "--backend", "nccl", str(script)]) == 2
    assert NO_GPU in capsys.readouterr().err
    job = simlib.submit(main, 1, to=simlib.Mpiexec(), folder=tmp_path, backend="nccl")
    with pytest.raises(simlib.JobError) as caught:
        job.result(WAIT_S)
    assert NO_GPU in str(caught.value) and "use backend='gloo'" in str(caught.value)


def test_nccl_wants_a_gpu_for_each_rank(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    assert BACKENDS["nccl"].missing(1) is None
    assert "this machine has 1 for 2 ranks" in BACKENDS["nccl"].missing(2)


# Tensors on a GPU, by a stand-in: no data is looked at, and ops end by event


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU, and whose data nobody may ask for."""

    is_cuda = True
    device = torch.device("cuda", 0)

    def _synchronises(self, *args, **kwargs):
        raise AssertionError("somebody asked for data")

    item = tolist = cpu = numpy = to = float = __bool__ = __int__ = __float__ = _synchronises


def on_gpu(*shape):
    return torch.zeros(*shape).as_subclass(OnGpu)


ON_CUDA = {"cuda": NCCL}


def reduction(op):
    opts = dist.AllreduceOptions()
    opts.reduceOp = op
    return opts


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda x: check_message("recv_anysource", x, 0, ON_CUDA),
            "NCCL has no recv from any source: name src",
        ),
        (lambda x: check_message("send", x, 3, ON_CUDA), "tag=3 is not possible: NCCL has no tags"),
        (
            lambda x: check_collective(
                "all_reduce", "allreduce", Place(0, 2), reduction(dist.ReduceOp.BAND),
                ([x],), ON_CUDA,
            ),
            "Cannot use ReduceOp.BAND with NCCL: take one of SUM",
        ),
        (
            lambda x: check_collective(
                "all_reduce", "allreduce", Place(0, 2), None, ([x],), {"cpu": MPI}
            ),
            "all_reduce with mpi4py takes tensors on cpu, but this tensor is on cuda:0",
        ),
        (
            lambda x: check_collective(
                "all_to_all", "alltoall", Place(0, 2), None,
                ([x, torch.zeros(2)], [x, x]), {"cpu": GLOO, **ON_CUDA},
            ),
            "must be on one kind of device, but these are on cpu and cuda:0",
        ),
    ],
)  # fmt: skip
def test_what_nccl_lacks_is_refused_in_a_sentence(call, sentence):
    with pytest.raises(simlib.InvalidCallError) as caught:
        call(on_gpu(2))
    assert sentence in str(caught.value)


class Gpu:
    """A stream: events are passed at the times it is told, all on the rank's clock."""

    def __init__(self):
        self.now_s = 100.0
        self.busy_until_s = 0.0

    def work(self, seconds):
        self.busy_until_s = max(self.now_s, self.busy_until_s) + seconds

    def record(self, device, event=None):
        event = event or Event(self, device)
        assert event.device == device, "torch refuses: an event stays with its device"
        event.passed_s = max(self.now_s, self.busy_until_s)
        return event

    def clock(self):
        return self.now_s


class Event:
    made = 0

    def __init__(self, gpu, device):
        self.gpu, self.device = gpu, device
        Event.made += 1

    def query(self):
        return self.gpu.now_s >= self.passed_s

    def elapsed_time(self, later):
        assert self.query() and later.query(), "torch refuses to tell"
        return 1000 * (later.passed_s - self.passed_s)


def stream():
    """A stream, a log of when which op ended, and who writes it."""
    gpu, ended = Gpu(), {}
    return gpu, ended, StreamEnds(SimpleNamespace(ended=ended.__setitem__), gpu.record, gpu.clock)


def test_an_op_ends_when_the_gpu_has_come_to_its_event():
    gpu, ended, ends = stream()
    ends.begin("cuda:0")
    ends.mark(1, "cuda:0")  # the stream has nothing to do
    gpu.work(2.0)
    ends.mark(2, "cuda:0")
    gpu.work(3.0)
    ends.mark(3, "cuda:0")
    ends.look()
    assert ended == {1: 100.0} and ends
    gpu.now_s = 104.0  # late, but the event knows
    ends.look()
    assert ended == pytest.approx({1: 100.0, 2: 102.0})
    gpu.now_s = 105.0
    ends.look()
    assert ended[3] == pytest.approx(105.0) and not ends


def test_a_first_event_that_came_late_is_found_out_by_a_later_one():
    gpu, ended, ends = stream()
    gpu.work(5.0)
    ends.begin("cuda:0")
    ends.mark(1, "cuda:0")
    gpu.now_s = 106.0
    ends.mark(2, "cuda:0")
    gpu.now_s = 107.0
    ends.mark(3, "cuda:0")
    ends.look()
    assert ended[2] == ended[3] - 1 == pytest.approx(106.0)
    assert ended[1] <= 105.0


def test_the_last_look_does_not_wait_for_a_gpu_that_hangs():
    gpu, ended, ends = stream()
    ends.begin("cuda:0")
    gpu.work(0.5)
    ends.mark(1, "cuda:0")
    gpu.work(1e6)
    ends.mark(2, "cuda:0")

    def sleep(seconds):
        gpu.now_s += 0.25

    ends.last_look(sleep)
    assert set(ended) == {1} and gpu.now_s < 102


class Failed:
    """An event of a GPU on which a kernel has failed: torch raises at whatever is asked."""

    def query(self):
        raise RuntimeError("CUDA error: device-side assert triggered")


def fails_with_its_gpu(rank, world_size):
    (ends,) = (one for one in gc.get_objects() if type(one) is StreamEnds)
    ends._record = lambda device, event: Failed()
    ends.begin("cuda:0")
    ends.mark(1, "cuda:0")
    print("the last words", end="")
    raise ValueError("the learner's own")


@pytest.mark.parametrize("engine", [simlib.run, by_job])
def test_a_gpu_that_fails_takes_neither_output_nor_error_with_it(engine):
    with pytest.raises(simlib.RankError, match="ValueError: the learner's own") as caught:
        engine(fails_with_its_gpu, 1)
    assert "CUDA" not in str(caught.value)
    assert "the last words" in caught.value.run.output[0]


def test_a_device_may_be_added_while_another_thread_looks():
    gpu, ended, ends = stream()

    class Slow(Event):
        def query(self):
            ends.begin("cuda:1")
            ends.mark(2, "cuda:1")
            return super().query()

    ends.begin("cuda:0")
    ends._record = lambda device, event: gpu.record(device, Slow(gpu, device))
    ends.mark(1, "cuda:0")
    ends._record = gpu.record
    ends.look()
    assert 1 in ended


class Inner:
    """A backend whose requests are waited for by the GPU: `wait` returns at once."""

    def __init__(self, gpu, seconds):
        self.gpu, self.seconds = gpu, seconds

    def __getattr__(self, name):
        def call(*args):
            self.gpu.work(self.seconds)
            return self

        return call

    def wait(self, *timeout):
        return True

    block_current_stream = wait


class Watch(TorchDispatchMode):
    """The ops on tensors that something needs."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def test_a_rank_looks_once_for_many_ops_and_makes_few_events():
    gpu, ended, ends = stream()
    Event.made, counts = 0, set()
    for number in range(10 * pending.EVERY):
        ends.look_in_turn()
        counts.add(len(ended))
        for device, op in (("cuda:0", number), ("cuda:1", -1 - number)):
            ends.begin(device)
            ends.mark(op, device)
    assert len(counts) == 10 and len(ended) >= 18 * pending.EVERY
    assert Event.made <= 2 * (pending.EVERY + 1)


def test_an_op_on_a_gpu_is_recorded_when_posted_and_nothing_is_synchronised(monkeypatch):
    monkeypatch.setattr(pending, "EVERY", 1)
    gpu = Gpu()
    memory = mmap.mmap(-1, 1 << 20)
    log = OpLogWriter(memory, gpu.clock)
    recorder = Recorder(log, lambda: True)
    recorder.stream_ends = StreamEnds(log, gpu.record, gpu.clock)
    fingerprints = create_shared_memory("fingerprints", size_of_table(2))
    recorder.begin(FingerprintTable(fingerprints, 2, 0))
    transport = Transport("nccl", "cuda:nccl", Inner(gpu, 2.0), (), ON_CUDA, lambda timeout: None)
    group = RecordingGroup(recorder, transport, 0, 2, "", (0, 1))
    watch = Watch()
    watch.seen = []
    x, y = on_gpu(4), on_gpu(8)
    with watch:
        group.allreduce([x], reduction(dist.ReduceOp.SUM)).wait()
        gpu.now_s = 101.0
        group.all_gather_single(y, x, None).wait()
        group.send([x], 1, 0).wait()
        group.broadcast([x], dist.BroadcastOptions())
    assert watch.seen == []
    reader = OpLogReader(memory, 0)
    ops = reader.ops(0.0, {})
    assert [(op.kind, op.post_s, op.end_s) for op in ops] == [
        ("all_reduce", 100.0, None),
        ("all_gather", 101.0, None),
        ("send", 101.0, None),
        ("broadcast", 101.0, None),
    ]
    assert reader.waiting_offset == 0
    gpu.now_s = 104.5
    group.allreduce([x], reduction(dist.ReduceOp.SUM))
    ends = [op.end_s for op in OpLogReader(memory, 0).ops(0.0, {})]
    assert ends[:3] == [pytest.approx(102.0), pytest.approx(104.0), None]
    group.allreduce([x], reduction(dist.ReduceOp.SUM)).block_current_stream()
    gpu.now_s = 200.0
    recorder.stream_ends.look()
    ends = [op.end_s for op in OpLogReader(memory, 0).ops(0.0, {})]
    assert ends[2:] == [pytest.approx(106.0), None, None, pytest.approx(112.0)]
