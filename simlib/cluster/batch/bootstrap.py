"""The program that the launcher starts for every rank. `submit` copies it into the job's folder.

It runs with any version of Python and needs no package, so that it can report what is wrong with
the host. Its child process loads simlib, torch and MPI. If the child dies while it loads them, the
parent reports the death. Otherwise the other ranks, and some launchers, would wait for the child
for ever.
"""

import importlib
import json
import os
import signal
import sys
import time

FOLDER = os.path.dirname(os.path.abspath(__file__))
LOOK_S = 0.05
UNWRITTEN = "no rank can run here: "
"""If the job's folder does not accept a file, the report to the launcher begins with these
words."""


def refuse(words):
    """Report why no rank can run here, and end the other ranks. Does not return."""
    words = os.uname()[1] + " " + words
    try:
        keep(words)
        open(os.path.join(FOLDER, "end"), "a").close()
    except OSError as error:
        tell_unwritten(FOLDER, error, words)
    os._exit(1)


def tell_unwritten(folder, error, words):
    """Report that the job's folder does not accept a file. Write this for the launcher, because
    simlib reads its output."""
    sys.__stderr__.write(
        "%s%s cannot write into the job's folder %s (%s): give this account the right and the "
        "space to write there, or name another folder with folder=...\n    "
        "%s\n" % (UNWRITTEN, os.uname()[1], folder, error.strerror, words)
    )
    sys.__stderr__.flush()


def keep(words):
    """Write the reason into the job's folder. The first reason stays, because `link` does not
    replace a file."""
    target = os.path.join(FOLDER, "refused")
    draft = os.path.join(FOLDER, ".refused.%s.%d" % (os.uname()[1], os.getpid()))
    with open(draft, "w") as file:
        file.write(words)
    try:
        os.link(draft, target)
    except FileExistsError:
        pass
    except OSError:  # a filesystem without links
        os.replace(draft, target)
    if os.path.exists(draft):
        os.unlink(draft)


def tell_lost(words):
    """Report that the process around a rank here was ended from outside. End the other ranks.

    The process id in the report shows which rank this is. Only the first report counts.
    """
    if os.path.exists(os.path.join(FOLDER, "end")):
        return
    try:
        with open(os.path.join(FOLDER, "gone.json"), "x") as file:
            json.dump({"host": os.uname()[1], "starter": os.getpid(), "words": words}, file)
    except FileExistsError:  # somebody was first
        pass
    except OSError as error:
        return tell_unwritten(FOLDER, error, words)
    open(os.path.join(FOLDER, "end"), "a").close()


def check_python(wanted):
    """Refuse another minor version of Python: it could not read the job's function, which is sent
    as bytecode."""
    here = sys.version.split()[0]
    if here.split(".")[:2] != wanted.split(".")[:2]:
        refuse(
            "runs %s, which is Python %s, but the notebook has Python %s: install the same version "
            "on every host" % (sys.executable, here, wanted)
        )


def enter(folder):
    """Enter the working folder.

    The launcher itself starts in "/", because some launchers hide the error if they cannot enter a
    folder.
    """
    try:
        os.chdir(os.path.expanduser(folder))
    except OSError:
        refuse(
            "does not see the folder %s, in which the job is to run: submit the job from "
            "a folder that all hosts share, or name such a folder with working_dir=..." % folder
        )


def be_rank(root, writer):
    """In the child: load all modules, report this, and become a rank's supervisor. Does not
    return."""
    sys.path[:0] = [root]
    try:
        main = importlib.import_module("simlib.cluster.batch.job_rank").main  # of the host's simlib
    except Exception as error:
        refuse("cannot load simlib (%s): install the same environment on every host" % error)
    os.write(writer, b"k")
    os.close(writer)
    main(FOLDER)


def has_written(pipe):
    """Whether the child has reported that it has loaded all modules."""
    try:
        return bool(os.read(pipe, 1))
    except BlockingIOError:
        return False


def stay(child, pipe):
    """In the parent: wait for the child. Exit if the launcher has ended; the child notices this.

    If the job fails elsewhere while the child still loads modules, end the child, because it would
    not notice the failure. Returns the exit code for the launcher.
    """
    parent = os.getppid()
    os.set_blocking(pipe, False)
    ended = has_loaded = False
    while not ended:
        time.sleep(LOOK_S)
        has_ended = os.path.exists(os.path.join(FOLDER, "end"))
        has_loaded = has_loaded or has_written(pipe)
        if has_ended and not has_loaded:
            os.kill(child, signal.SIGKILL)
        ended, status = os.waitpid(child, os.WNOHANG)
        if not ended and os.getppid() != parent:
            tell_lost("the launcher's program that started the rank has ended")
            os._exit(1)
    has_loaded = has_loaded or has_written(pipe)
    if has_loaded and status & 0x7F:
        tell_lost("the process that watched the rank was ended by signal %d" % (status & 0x7F))
    if not has_loaded and not os.path.exists(os.path.join(FOLDER, "end")):
        how = "exit code %d" % (status >> 8) if status >> 8 else "signal %d" % (status & 0x7F)
        refuse(
            "cannot load simlib (the process that tried ended with %s): run "
            "`%s -c 'import simlib'` on that host and fix the error that it prints, or install the "
            "same environment on every host" % (how, sys.executable)
        )
    return 1 if status else 0


if __name__ == "__main__":
    with open(os.path.join(FOLDER, "job.json")) as job:
        about = json.load(job)
    check_python(about["versions"]["Python"])
    enter(about["cwd"])
    pipe, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        os._exit(stay(child, pipe))
    os.close(pipe)
    be_rank(about["root"], writer)
