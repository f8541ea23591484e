"""What another account has put into a job's folder is never read; recorded jobs are plain data."""

import contextlib
import json
import os
import pickle
import shutil
import socket
import stat
import sys
import tempfile
from pathlib import Path

import pytest
from jobs import WAIT_S, fake_launcher

import simlib
from simlib.cli import main
from simlib.cluster.batch import logs, submission
from simlib.cluster.batch.folder import JobFolder, check_place
from simlib.cluster.batch.logs import writer
from simlib.core.model import errors
from simlib.core.record.oplog import HEADER
from simlib.core.record.safe_pickle import dumps_tree

RECORDED = Path(__file__).resolve().parents[2] / "notebooks" / "recorded"
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another account")


class Hostile:
    """Makes a file when it is read as a pickle."""

    def __init__(self, path):
        self._path = str(path)

    def __reduce__(self):
        return os.mkdir, (self._path,)


@pytest.fixture
def shared():
    """A folder in which every account can make folders, as in /tmp."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


def plant(within, evil, **more):
    """A job that is over, in which whatever may be a pickle is a hostile one."""
    path = within / "planted-1"
    shutil.copytree(RECORDED / "both_receive-1", path)
    hostile = pickle.dumps(Hostile(evil))
    about = json.loads((path / "job.json").read_text())
    del about["is_recorded"]
    (path / "job.json").write_text(json.dumps(about | more))
    for name in ("request.pkl", "verdict.pkl", "rank-0.answer", "rank-1.answer"):
        (path / name).write_bytes(hostile)
    for rank in range(2):
        memory = bytearray(1 << 12)
        writer(memory).define("here", "site", ("a.py", 3, "main"))
        memory[HEADER + 8 : HEADER + 8 + len(hostile)] = hostile
        (path / f"rank-{rank}.log").write_bytes(memory)
    (path / "state.json").write_text(json.dumps({"state": "active", "host": "x", "pid": 1}))
    native = {"scheduler": "slurm", "id": "1", "login": ["mkdir", str(evil)]}
    (path / "native.json").write_text(json.dumps(native))
    return path


def as_nobody(work):
    """Do ``work()`` in a process of another account."""
    pid = os.fork()
    if not pid:
        try:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def try_all(path):
    """All that one can ask a job, while it runs and when it has ended."""
    with contextlib.suppress(Exception):
        repr(simlib.Job(path))
    (path / "state.json").write_text(json.dumps({"state": "ended", "code": 1, "why": "code"}))
    for ask in (simlib.Job.follow, simlib.Job.result, simlib.Job.cancel):
        with contextlib.suppress(Exception):
            ask(simlib.Job(path))


@needs_root
def test_a_job_that_another_account_has_planted(shared):
    evil = shared / "evil"
    as_nobody(lambda: plant(shared, evil))
    as_nobody(lambda: (shared / "x-1" / "job.json").mkdir(parents=True))  # whose it is comes first
    with pytest.raises(simlib.InvalidCallError) as caught:
        simlib.Job(shared / "planted-1")
    words = str(caught.value)
    assert "planted-1 belongs to nobody, but this account is root. Reading a job" in words
    assert "\n" not in words
    with pytest.warns(UserWarning, match="planted-1 belongs to nobody.*Other jobs left out: 1"):
        assert simlib.jobs(shared) == []
    assert not evil.exists()
    shutil.rmtree(shared / "planted-1")
    with pytest.warns(UserWarning, match=r"jobs\(\) leaves out a job: .*x-1 belongs to nobody"):
        assert simlib.jobs(shared) == []
    try_all(plant(shared, evil))  # it would harm who trusts it
    assert evil.exists()


@needs_root
@pytest.mark.parametrize("name", ["rank-0.answer", "state.json", "request.pkl"])
def test_a_file_that_another_account_has_put_into_ones_own_job(tmp_path, name):
    path = plant(tmp_path, tmp_path / "evil")
    (path / "native.json").unlink()
    os.chown(path / name, NOBODY, NOBODY)
    with pytest.raises(simlib.InvalidCallError, match=f"{name} belongs to nobody"):
        JobFolder(path).read(name.removeprefix("rank-0."), 0 if "rank" in name else None)


@pytest.mark.parametrize(
    ("folder_mode", "file_mode", "refused"),
    [
        (0o700, 0o600, None),
        (0o700, 0o666, None),  # nobody else comes there
        (0o755, 0o644, None),
        (0o755, 0o664, "job.json can be written by other accounts (mode 664)"),
        (0o775, 0o644, "planted-1 can be written by other accounts (mode 775)"),
        (0o1702, 0o600, "planted-1 can be written by other accounts (mode 1702)"),
    ],
)
def test_the_mode_of_a_job_decides(tmp_path, folder_mode, file_mode, refused):
    path = plant(tmp_path, tmp_path / "evil")
    (path / "job.json").chmod(file_mode)
    path.chmod(folder_mode)
    if refused is None:
        assert simlib.Job(path).world_size == 2
        return
    with pytest.raises(simlib.InvalidCallError) as caught:
        simlib.Job(path)
    assert refused in str(caught.value) and "chmod go-w" in str(caught.value)
    with pytest.warns(UserWarning, match=r"jobs\(\) leaves out a job"):
        assert simlib.jobs(tmp_path) == []


def test_a_folder_that_is_swapped_or_opened_to_others_later_is_refused(tmp_path):
    path = plant(tmp_path, tmp_path / "evil")
    path.chmod(0o755)
    folder = JobFolder(path)
    assert folder.read_json("job.json")["world_size"] == 2
    path.chmod(0o775)
    with pytest.raises(simlib.InvalidCallError, match=r"planted-1 can be written .*mode 775"):
        folder.read("state.json")
    path.rename(tmp_path / "before")
    plant(tmp_path, tmp_path / "evil").chmod(0o777)
    with pytest.raises(simlib.InvalidCallError, match=r"planted-1 can be written .*mode 777"):
        folder.read("state.json")


def make_socket(path):
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as own:
        own.bind(path.name)  # a whole path may be too long


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, make_socket])
def test_what_is_no_file_is_refused_and_holds_nobody_up(tmp_path, make):
    plant(tmp_path, tmp_path / "evil")
    (tmp_path / "x-1").mkdir(0o700)
    make(tmp_path / "x-1" / "job.json")
    open_before = os.listdir("/proc/self/fd")
    with pytest.raises(
        simlib.InvalidCallError, match="job.json cannot be read as a file of a job: "
    ):
        JobFolder(tmp_path / "x-1").read("job.json")
    assert os.listdir("/proc/self/fd") == open_before
    with pytest.warns(
        UserWarning, match=r"jobs\(\) leaves out a job: .*x-1/job.json cannot be read"
    ):
        assert [job.name for job in simlib.jobs(tmp_path)] == ["planted-1"]


def test_the_command_line_tells_what_is_left_out_in_its_own_words(tmp_path, capsys):
    (tmp_path / "x-1" / "job.json").mkdir(parents=True)
    (tmp_path / "x-1").chmod(0o700)
    assert main(["jobs", "--folder", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.out == f"there are no jobs in {tmp_path}\n"
    words = f"simlib: jobs() leaves out a job: {tmp_path}/x-1/job.json cannot be read as a "
    assert said.err == f"{words}file of a job: it is not a regular file\n"


@needs_root
def test_a_recorded_job_is_plain_data_whoever_has_written_it(shared):
    """A course that is installed for all is root's."""
    evil = shared / "evil"
    as_nobody(lambda: plant(shared, evil, is_recorded=True))
    try_all(shared / "planted-1")
    assert not evil.exists()
    with pytest.warns(UserWarning, match="belongs to nobody"):
        assert simlib.jobs(shared) == []
    shutil.copytree(RECORDED / "around-1", shared / "around-1")
    (shared / "around-1").chmod(0o775)
    for path in (shared / "around-1", *(shared / "around-1").iterdir()):
        os.chown(path, NOBODY, NOBODY)
    run = simlib.Job(shared / "around-1").result()
    assert run.results == simlib.Job(RECORDED / "around-1").result().results


def test_the_recorded_jobs_hold_no_pickle_that_calls():
    for path in RECORDED.glob("*-1"):
        job = JobFolder(path, is_recorded=True)
        assert job.read_json("job.json")["is_recorded"] is True
        assert not path.joinpath("native.json").exists()
        for answer in path.glob("rank-*.answer"):
            logs.load_answer(answer.read_bytes(), may_call=False)
        if job.has("verdict.pkl"):
            logs.load_verdict(job.read("verdict.pkl"))


def test_further_attempts_read_only_ones_own_plan(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = plant(tmp_path, tmp_path / "evil", cwd=os.getcwd())
    (path / "restarts.pkl").write_bytes(pickle.dumps(Hostile(tmp_path / "evil")))
    path.chmod(0o755)
    for name in ("request.pkl", "restarts.pkl"):
        (path / name).chmod(0o666)
        assert submission.carry_attempts(str(path)) == 1
        words = (path / "refused").read_text()
        assert f"could not restart: InvalidCallError: {path / name} can be written" in words
        (path / "refused").unlink()
        (path / name).chmod(0o600)
        (path / "request.pkl").write_bytes(dumps_tree({"path": sys.path}))
    assert not (tmp_path / "evil").exists()


OPENED = """lambda rank, size: (
    os.chmod(os.path.dirname(program[-1]), 0o755),
    os.chmod(os.path.join(os.path.dirname(program[-1]), "request.pkl"), 0o666),
    {"PMI_RANK": str(rank), "PMI_SIZE": str(size)},
)[-1]"""


def test_ranks_run_only_what_nobody_else_can_have_written(tmp_path):
    """The launcher here stands for who opens the folder to others meanwhile."""
    launcher = fake_launcher(tmp_path, OPENED)
    to = simlib.Mpiexec(launcher=launcher, time_limit=WAIT_S)
    job = simlib.submit(lambda rank, size: rank, 1, to=to, folder=tmp_path, on_death="continue")
    with pytest.raises(simlib.InvalidCallError, match="request.pkl can be written by other"):
        job.result(WAIT_S)
    assert "request.pkl can be written by other accounts" in (job.path / "refused").read_text()


def test_no_job_is_made_where_others_could_replace_its_folder(tmp_path, monkeypatch):
    """Nor where modes are not kept, as on drives of Windows: every folder is everybody's."""
    anybodys = tmp_path / "anybodys"
    anybodys.mkdir()
    anybodys.chmod(0o777)
    for folder in (anybodys, anybodys / "jobs"):
        with pytest.raises(simlib.InvalidCallError, match="any account can create folders"):
            simlib.submit(print, 1, folder=folder)
    assert list(anybodys.iterdir()) == []
    anybodys.chmod(0o1777)
    check_place(anybodys)
    truly_make = os.mkdir

    def make(path, mode=0o777, **named):
        truly_make(path, **named)
        os.chmod(path, 0o777)

    (tmp_path / "jobs").mkdir()
    monkeypatch.setattr(os, "mkdir", make)
    with pytest.raises(simlib.InvalidCallError, match="main-1 can be written by other accounts"):
        simlib.submit(print, 1, folder=tmp_path / "jobs", name="main")
    assert list((tmp_path / "jobs").iterdir()) == []


def test_results_are_plain_data_where_their_types_permit(tmp_path):
    def main(rank, size):
        return [{"loss": 0.5}, (1, "a")] if rank == 0 else Path("a")

    job = simlib.submit(main, 2, to=simlib.Mpiexec(time_limit=WAIT_S), folder=tmp_path)
    assert job.result(WAIT_S).results == [[{"loss": 0.5}, (1, "a")], Path("a")]
    held = [(job.path / f"rank-{rank}.answer").read_bytes() for rank in range(2)]
    assert [content.startswith(logs.PLAIN) for content in held] == [True, False]
    assert stat.S_IMODE(job.path.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", sorted(logs.ERRORS))
def test_a_verdict_comes_back(name):
    found = logs.load_verdict((RECORDED / "both_receive-1" / "verdict.pkl").read_bytes())
    error = logs.ERRORS[name]("what is wrong", sites=found.sites)
    if isinstance(error, errors.DeadlockError):
        error.graph = found.graph
    again = logs.load_verdict(logs.dump_verdict(error))
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))
    assert found.sites[0].lineno == 6
