"""What the launcher starts for every rank of a job; `submit` puts a copy into the job's folder.

It needs nothing but a Python, of whatever version: what is wrong with a host is said by the host.
Loading simlib, torch and MPI is left to a child, so that somebody is left to tell if that child
dies of it: the other ranks, and some launchers, would wait for it for ever.
"""

import importlib
import json
import os
import signal
import sys
import time

FOLDER = os.path.dirname(os.path.abspath(__file__))
LOOK_S = 0.05
UNWRITTEN = "there can be no rank here: "
"""Begins the line that tells the launcher what the job's folder does not take."""


def refuse(words):
    """Say why there can be no rank here, and have the others end; does not return."""
    words = os.uname()[1] + " " + words
    try:
        keep(words)
        open(os.path.join(FOLDER, "end"), "a").close()
    except OSError as error:
        tell_unwritten(FOLDER, error, words)
    os._exit(1)


def tell_unwritten(folder, error, words):
    """Tell the launcher what the job's folder does not take: who waits for it reads that, too."""
    sys.__stderr__.write(
        "%s%s cannot write into the job's folder %s (%s): give this account leave and room to "
        "write there, or name another folder by folder=...\n    %s\n"
        % (UNWRITTEN, os.uname()[1], folder, error.strerror, words)
    )
    sys.__stderr__.flush()


def keep(words):
    """Write the reason down. The first one stays: `link` makes no name that there is already."""
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
    """Say that what looks after a rank on this host was ended from outside; have the others end.

    Which rank it is, is known by this process's number. The first who says so counts.
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
    """Functions travel as bytecode, which only the same minor version of Python reads."""
    here = sys.version.split()[0]
    if here.split(".")[:2] != wanted.split(".")[:2]:
        refuse(
            "has Python %s, the notebook %s: install the same on every host (%s runs there)"
            % (here, wanted, sys.executable)
        )


def enter(folder):
    """The launcher has started this in "/": some say nothing where they cannot enter a folder."""
    try:
        os.chdir(os.path.expanduser(folder))
    except OSError:
        refuse(
            "does not see the folder %s, in which the job is to run: submit it from a folder on a "
            "filesystem that all hosts share, or name one by working_dir=..." % folder
        )


def be_rank(root, writer):
    """In the child: load everything, say so, be the supervisor of a rank. Does not return."""
    sys.path[:0] = [root]
    try:
        main = importlib.import_module("simlib.cluster.batch.job_rank").main  # of the host's simlib
    except Exception as error:
        refuse("cannot load simlib (%s): install the same environment on every host" % error)
    os.write(writer, b"k")
    os.close(writer)
    main(FOLDER)


def has_written(pipe):
    """Whether the child has loaded everything, and said so."""
    try:
        return bool(os.read(pipe, 1))
    except BlockingIOError:
        return False


def stay(child, pipe):
    """In the parent: wait for the child; when the launcher is gone, leave, which the child sees.

    A child that still loads, while the job has failed elsewhere, is ended here: it would not see
    it. Returns the exit code for the launcher.
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
            tell_lost("the program of the launcher that started it there has ended")
            os._exit(1)
    has_loaded = has_loaded or has_written(pipe)
    if has_loaded and status & 0x7F:
        tell_lost("the process that looked after it was ended by signal %d" % (status & 0x7F))
    if not has_loaded and not os.path.exists(os.path.join(FOLDER, "end")):
        how = "exit code %d" % (status >> 8) if status >> 8 else "signal %d" % (status & 0x7F)
        refuse(
            "cannot load simlib (the process that tried ended with %s): mend what "
            "`%s -c 'import simlib'` says there, or install the same environment on every host"
            % (how, sys.executable)
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
