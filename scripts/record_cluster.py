"""Record the jobs that lesson 16 shows where there is no cluster, into ``notebooks/recorded``.

    python scripts/record_cluster.py [--openmpi MPIEXEC] [--intel MPIEXEC]

It makes a practice cluster (Linux, root, Slurm), runs the lesson on its login host, and keeps what
a reader needs of each job's folder and of each command's output. The environments that Open MPI's
and Intel MPI's ranks find are recorded anew where their ``mpiexec`` is named, and kept otherwise.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "authoring")]

from build import execute, isolate_kernels, with_neutral_places  # noqa: E402

from simlib.classroom.grading.source import read_source  # noqa: E402
from simlib.cluster.batch import logs  # noqa: E402
from simlib.cluster.practice import PracticeCluster  # noqa: E402
from simlib.core.record.safe_pickle import dumps_tree, loads_tree  # noqa: E402

RECORDED = ROOT / "notebooks" / "recorded"
LESSON = ROOT / "authoring" / "lessons" / "16_the_real_cluster.py"
RATE_BPS = 100e6
HOSTS = ["node1", "node2", "node3", "node4"]
TAKEN_ALONG = (
    "state.json",
    "verdict.pkl",
    "rank-*.json",
    "rank-*.out",
    "rank-*.answer",
)
LOG_NBYTES = 10_000
"""A larger log of calls is left out: the lesson wants numbers of that job, no picture."""

# Appended to the lesson's cells: what commands print is kept, and in the end the jobs are.
KEEP_OUTPUT = """
_command = command


def command(name, *words):
    text = _command(name, *words)
    Path({kept!r}, name + ".txt").write_text(text)
    return text
"""
KEEP_JOBS = """
for job in simlib.jobs(JOBS):
    shutil.copytree(job.path, Path({kept!r}, job.name))
"""
ENVIRONMENT = "import json, os, sys; print(json.dumps(dict(os.environ)), file=open(sys.argv[1] + "
ENVIRONMENT += "os.environ[sys.argv[2]], 'w'))"
RANKS = {"Slurm": "SLURM_PROCID", "Open MPI": "OMPI_COMM_WORLD_RANK", "Intel MPI": "PMI_RANK"}
PREFIXES = ("PMI_", "MPI_LOCAL", "OMPI_COMM_WORLD", "SLURM_", "MASTER_", "LOCAL_", "GROUP_")


def main():
    """Make the cluster, and run this program again on its login host."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--openmpi", metavar="MPIEXEC", help="of Open MPI")
    parser.add_argument("--intel", metavar="MPIEXEC", help="of Intel MPI")
    parser.add_argument("--on-login", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.on_login:
        run_lesson(Path(options.on_login))
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        PracticeCluster(len(HOSTS), rate_bps=RATE_BPS, slurm=True) as cluster,
    ):
        kept = Path(folder, "kept")
        kept.mkdir()
        Path(folder, "hostfile").write_text("\n".join(HOSTS))
        environ = {**os.environ, "HOSTFILE": str(Path(folder, "hostfile"))}
        program = [sys.executable, __file__, "--on-login", kept]
        environments = record_environments(cluster, Path(folder), options)
        write_environments(environments)  # the lesson reads them
        cluster.run("login", program, env=environ, check=True)
        replace(kept)
        write_environments(environments)


def run_lesson(kept):
    """Run the lesson here, on the login host, and copy what it leaves into a folder."""
    isolate_kernels(kept.parent)
    notebook = read_source(LESSON, is_exercise=False)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    definition = next(cell for cell in code if "def command(" in cell.source)
    definition.source += KEEP_OUTPUT.format(kept=str(kept))
    code[-1].source += KEEP_JOBS.format(kept=str(kept))
    execute(notebook, ROOT / "notebooks", LESSON.name)


def record_environments(cluster, folder, options):
    """``{launcher: variables}`` as the last of four ranks on two hosts finds them."""
    mark = str(folder / "env-")
    program = [sys.executable, "-S", "-c", ENVIRONMENT, mark]
    two = "-n 4 -ppn 2 -hosts node1,node2".split()
    slots = "--allow-run-as-root -n 4 --host node1:2,node2:2 -x PATH".split()
    commands = {"Slurm": ["srun", "-N", "2", "--ntasks-per-node=2", "--mpi=none"]}
    commands |= {"Open MPI": [options.openmpi, *slots]} if options.openmpi else {}
    commands |= {"Intel MPI": [options.intel, *two]} if options.intel else {}
    found = json.loads((RECORDED / "env.json").read_text())
    for name, words in commands.items():
        cluster.run("login", [*words, *program, RANKS[name]], check=True, stdin=subprocess.DEVNULL)
        found[name] = last_of(mark)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node=2"]
    torchrun += ["--nnodes=2", "--master-addr=node1", "--master-port=29500"]
    agents = [
        cluster.popen(host, [*torchrun, f"--node-rank={number}", *program, "RANK"])
        for number, host in enumerate(HOSTS[:2])
    ]
    assert [agent.wait() for agent in agents] == [0, 0]
    found["torchrun"] = last_of(mark)
    return found


def last_of(mark):
    """The variables that tell rank 3 who it is."""
    environment = json.loads(Path(f"{mark}3").read_text())
    return {
        name: value
        for name, value in sorted(environment.items())
        if name in ("RANK", "WORLD_SIZE") or name.startswith(PREFIXES)
    }


def write_environments(environments):
    """Put them where the lesson looks."""
    (RECORDED / "env.json").write_text(
        with_neutral_places(json.dumps(environments, indent=1)) + "\n"
    )


def replace(kept):
    """Put the new records into the place of the old ones."""
    for old in RECORDED.iterdir():
        if old.name not in ("README.md", "failures"):  # those are lesson 14's
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    for text in sorted(kept.glob("*.txt")):
        (RECORDED / text.name).write_text(with_neutral_places(text.read_text()))
    for job in sorted(kept.glob("*/job.json")):
        if json.loads(job.read_text())["to"] != "this machine":
            reduce_job(job.parent, RECORDED / job.parent.name)


def reduce_job(folder, target):
    """Copy what `simlib.Job` reads; not the function, its data and the machine's folders."""
    target.mkdir()
    for pattern in TAKEN_ALONG:
        for path in folder.glob(pattern):
            shutil.copy(path, target)
    about = json.loads(with_neutral_places((folder / "job.json").read_text()))
    about["is_recorded"] = True
    (target / "job.json").write_text(json.dumps(about, indent=1))
    for path in folder.glob("rank-*.log"):
        if path.stat().st_size <= LOG_NBYTES:
            shutil.copy(path, target)
    for path in target.glob("rank-*.answer"):
        answer = logs.load_answer(path.read_bytes(), may_call=True)
        path.write_bytes(logs.PLAIN + dumps_tree(answer))
    cells = loads_tree((folder / "request.pkl").read_bytes())["cells"]
    (target / "request.pkl").write_bytes(dumps_tree({"cells": cells}))
    said = with_neutral_places((folder / "launcher.err").read_text()) if needs_words(folder) else ""
    (target / "launcher.err").write_text(said)


def needs_words(folder):
    """Whether the launcher's own words are what tells why the job has failed."""
    return not list(folder.glob("rank-*.json"))


if __name__ == "__main__":
    main()
