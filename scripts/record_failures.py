"""Record the restarts that lesson 14 shows as text, into ``notebooks/recorded/failures``.

    python scripts/record_failures.py [elastic] [requeue]

``elastic``: four launchers of torchrun train together, one is killed with its rank, three go on.
``requeue``: a job of Slurm's on a practice cluster (Linux, root, Slurm) loses a node and is handed
in again. Both train the script of the lesson.
"""

import ast
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "authoring")]

import torch  # noqa: E402
from build import with_neutral_places  # noqa: E402

from simlib.classroom.grading.source import read_source  # noqa: E402

LESSON = ROOT / "authoring" / "lessons" / "14_when_ranks_die.py"
RECORDED = ROOT / "notebooks" / "recorded" / "failures"
LIMIT_S = 540
ONE_CORE = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
ELASTIC = (
    "--nnodes=3:4 --nproc-per-node=1 --max-restarts=3 --monitor-interval=0.1 "
    "--rdzv-backend=c10d --rdzv-conf=last_call_timeout=2,keep_alive_interval=1"
)
OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
BATCH = """\
#!/bin/sh
#SBATCH --requeue --nodes=3 --ntasks-per-node=1 --open-mode=append --output={folder}/said
export GLOO_SOCKET_IFNAME=eth0 TORCHELASTIC_RESTART_COUNT=${{SLURM_RESTART_COUNT:-0}}
echo "attempt $TORCHELASTIC_RESTART_COUNT on $SLURM_JOB_NODELIST"
srun --mpi=none sh -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS \\
    exec {python} {folder}/file.py {folder}/saved'
"""


def main():
    """Record what was asked for; both where nothing was."""
    RECORDED.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or ["elastic", "requeue"]:
        with tempfile.TemporaryDirectory() as folder:
            lines = {"elastic": elastic, "requeue": requeue}[name](Path(folder))
        text = with_neutral_places("\n".join(lines).replace(folder, "~/job")) + "\n"
        (RECORDED / f"{name}.txt").write_text(text)
        print(text)


def write_scripts(folder):
    """The lesson's two scripts; they differ in the place where ranks meet.

    Steps are longer here, so that a death comes in the midst of them also on a busy machine.
    """
    found = {}
    for cell in read_source(LESSON, is_exercise=False).cells:
        for node in ast.parse(cell.source).body if cell.cell_type == "code" else ():
            name = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""
            if name in ("SCRIPT", "PLACES"):
                found[name] = ast.literal_eval(node.value)
            elif getattr(node, "name", "") == "train":
                found["train"] = ast.get_source_segment(cell.source, node)
    for name, place in found["PLACES"].items():
        train = found["train"].replace("time.sleep(0.1)", "time.sleep(0.5)")
        text = found["SCRIPT"].format(train=train, place=place)
        (folder / f"{name}.py").write_text(text)


def elastic(folder):
    """Four launchers, of which one is killed with its rank: the lines to show."""
    write_scripts(folder)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    words = [sys.executable, "-m", "torch.distributed.run", *ELASTIC.split()]
    words += [f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1", "--rdzv-id=lesson"]
    words += [folder / "plain.py", folder / "saved"]
    environ = os.environ | ONE_CORE
    environ |= {OWN_STORE: "1", "GLOO_SOCKET_IFNAME": "lo"}
    began_s, launchers = time.monotonic(), []
    lines = [f"4 x {OWN_STORE}=1 torchrun {ELASTIC} plain.py saved"]

    def note(text):
        lines.append(f"{time.monotonic() - began_s:5.1f} s  {text}")

    try:
        for number in range(4):
            with open(folder / f"said{number}", "w") as said:
                options = {"stdout": said, "stderr": subprocess.STDOUT, "env": environ}
                launchers.append(subprocess.Popen([*map(str, words)], **options))
            if number == 0:  # it keeps the store, so it has to be there first
                wait_until(lambda: listens(port))
        note("four launchers")
        wait_until(lambda: step_of(folder) >= 4)
        note(f"step {step_of(folder)} is saved; the fourth launcher and its rank are killed")
        end_with_children(launchers[3].pid)
        codes = [launcher.wait(LIMIT_S) for launcher in launchers]
        note(f"exit codes of the launchers: {codes}")
    finally:
        for launcher in launchers:
            if launcher.poll() is None:
                end_with_children(launcher.pid)
    said = "".join((folder / f"said{number}").read_text() for number in range(4))
    return lines + told(said)


def step_of(folder):
    """The step that is saved; 0 where none is."""
    path = folder / "saved"
    return torch.load(path)[0] if path.exists() else 0


def listens(port):
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def end_with_children(pid):
    """End a launcher, then its rank, which is in a session of its own."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for each in (pid, *map(int, children)):
        os.kill(each, signal.SIGKILL)


def requeue(folder):
    """A job of Slurm's, one node of which is switched off: the lines to show."""
    from simlib.cluster.practice import PracticeCluster

    write_scripts(folder)
    folder.chmod(0o755)
    script = folder / "job.sh"
    python = sys.executable.replace(" ", r"\ ")  # within quotes
    script.write_text(BATCH.format(folder=folder, python=python))
    lines = [script.read_text().rstrip(), ""]
    with PracticeCluster(4, slurm=True) as cluster:

        def say(*words):
            options = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
            done = cluster.run("login", [*map(str, words)], env=os.environ | ONE_CORE, **options)
            return (done.stdout + done.stderr).strip()

        def note(*words, doing=None):
            lines.extend([f"$ {' '.join(map(str, words))}"] if words else [f"# {doing}"])
            lines.extend(say(*words).splitlines() if words else [])

        def queue():
            return say("squeue", "--noheader", "--format=%T")

        note("sbatch", script)
        wait_until(lambda: step_of(folder) >= 4)
        switch_off(cluster, "node2")
        note(doing=f"step {step_of(folder)} is saved; node2 is switched off")
        note("squeue", "--format=%i %T %N")
        note("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=off")
        wait_until(lambda: queue() == "PENDING")
        note("squeue", "--format=%i %T %r")
        note("scontrol", "update", "JobId=1", "StartTime=now")
        wait_until(lambda: queue() == "RUNNING")
        note("squeue", "--format=%i %T %N")
        wait_until(lambda: queue() in ("", "COMPLETED"))
        note("sinfo", "--Node", "--format=%N %t")
    return [*lines, "", *told((folder / "said").read_text())]


def switch_off(cluster, host):
    """The host is gone, with all that ran on it."""
    os.kill(int((cluster.folder / "init" / host).read_text().split()[0]), signal.SIGKILL)


def told(said):
    """Of all that was printed: attempts, the first words of errors, results."""
    kept = []
    for line in said.splitlines():
        found = re.search(r"^attempt |result:|\[rank\d\]: RuntimeError|Node failure", line)
        if found:
            kept.append(re.sub(r"\[/.*?\] ", "", line)[:150])
    return kept


def results_of(text):
    """What ranks returned: (rank, attempt, ranks, first step, weights), by rank."""
    found = []
    for numbers, weights in re.findall(r"result: ([\d ]+) (\[.*\])", text):
        found.append((*map(int, numbers.split()), ast.literal_eval(weights)))
    return sorted(found)


def undisturbed():
    """The weights of a run without deaths, by a loop on one process."""
    w = torch.zeros(4)
    for step in range(10):
        x = torch.randn(12, 4, generator=torch.Generator().manual_seed(step))
        w = w - 0.3 * (w - x.mean(0))
    return w


def wait_until(what):
    end_s = time.monotonic() + LIMIT_S
    while not what():
        if time.monotonic() > end_s:
            raise TimeoutError(f"the awaited event did not happen in {LIMIT_S} s")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
