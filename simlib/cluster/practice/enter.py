"""Run a program on a host of a practice cluster: ``enter.py FOLDER HOST [--] program ...``.

It uses only the standard library, so it starts in a few hundredths of a second. The program gets
the caller's working folder, environment, terminal and files. Its exit code, or the signal that
ended it, becomes the exit code or signal of this process. SIGTERM, SIGHUP and SIGINT go on to the
program. After the program's end, its other children on the hosts are killed.
"""

import contextlib
import ctypes
import os
import resource
import secrets
import signal
import sys
import time

# From <linux/prctl.h>; Python has no name for it.
PR_SET_PDEATHSIG = 1
CANNOT = 125  # exit code, as other programs that run programs have it
CANNOT_RUN, NOT_FOUND = 126, 127
GRACE_S = 5.0  # between a signal handed on and the end of what does not follow it
LONG_S = 1e6
PAUSE_S = 0.005  # a process that waits for a disk is killed only when it has its answer
MARK = "SIMLIB_PRACTICE_EXEC"
libc = ctypes.CDLL(None, use_errno=True)


def refuse(sentence, code=CANNOT):
    """End this program with one sentence on stderr."""
    print(f"simlib: {sentence}", file=sys.stderr)
    sys.stderr.flush()
    os._exit(code)


def init_of(folder, host):
    """Return the process id of a host's first process."""
    place = os.path.join(folder, "init")
    try:
        hosts = sorted(os.listdir(place), key=lambda name: (len(name), name))
    except OSError:
        refuse("no practice cluster is up: `simlib practice up 2` starts one with two nodes")
    if host not in hosts:
        refuse(f"there is no host {host}: the practice cluster has {', '.join(hosts)}")
    with open(os.path.join(place, host)) as file:
        pid, start = file.read().split()
    if start_of(pid) != start:
        refuse(f"{host} has ended: run `simlib practice down`, then up again")
    return int(pid)


def start_of(pid):
    """Return the start time of a process, in ticks since boot; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            # The second field is the program's name in brackets, which may hold anything.
            state, *fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else fields[18]  # a zombie is gone, too


def namespaces_of(pid):
    """Open the namespaces of a process, and return them. Mounts come last, because after them paths
    mean other files."""
    kinds = ("pid", "net", "uts", "ipc", "mnt")
    try:
        return {kind: os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in kinds}
    except PermissionError:
        refuse("a program on a practice host needs root: start the same command as root")


def join(namespace):
    """Move this process into a namespace. For process ids, only the later children of this process
    move."""
    if libc.setns(namespace, 0):
        refuse(f"this host cannot be entered: {os.strerror(ctypes.get_errno())}")


def become(argv, namespaces, folder):
    """In the child: replace this process by the program. Does not return."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for namespace in namespaces.values():
        join(namespace)
    try:
        os.chdir(folder)
    except OSError as error:
        refuse(f"the working folder {folder} is not there on this host: {error.strerror}")
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and a program inherits
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execvp(argv[0], argv)
    except FileNotFoundError:
        refuse(f"there is no program {argv[0]}", NOT_FOUND)
    except OSError as error:
        refuse(f"{argv[0]} cannot be run: {error.strerror}", CANNOT_RUN)


def in_foreground():
    """Whether Ctrl-C in a terminal reaches the program even if this process does not pass it on."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False


def wait_for(child, mark, ending):
    """Pass signals to the child until the child has ended. Return its wait status."""
    is_ending = False
    while True:
        event = signal.sigtimedwait(ending | {signal.SIGCHLD}, GRACE_S if is_ending else LONG_S)
        if event is None and is_ending:
            os.kill(child, signal.SIGKILL)
        elif event and event.si_signo in ending:
            is_ending = True
            if event.si_signo != signal.SIGINT or not in_foreground():
                forward_signal(event.si_signo, child, mark)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            if is_ending:
                kill_marked(mark)
            return status


def forward_signal(number, child, mark):
    """Send a signal to the program and its foreground children, as a terminal would."""
    for pid in (child, *(pid for pid in marked(mark) if pid != child)):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(pid) == os.getpgrp():
                os.kill(pid, number)


def kill_marked(mark):
    """Kill all children of the program, on any host, until none is left."""
    while pids := marked(mark):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(PAUSE_S)


def marked(mark):
    """Return the processes that have the mark in their environment. A zombie has no environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if mark in file.read().split(b"\0"):
                found.append(int(pid))
    return found


def end_like(status):
    """End this process as the program ended: with the same exit code, or by the same signal."""
    if not os.WIFSIGNALED(status):
        os._exit(os.waitstatus_to_exitcode(status))
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program's own was the one to keep
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.kill(os.getpid(), number)


def main():
    """Run the program of the command line on its host."""
    folder, host, *argv = sys.argv[1:]
    argv = argv[1:] if argv[:1] == ["--"] else argv
    if not argv:
        refuse("give the program to run, after --")
    namespaces = namespaces_of(init_of(folder, host))
    here = os.getcwd()
    value = f"{os.getpid()}-{secrets.token_hex(8)}"
    os.environ[MARK] = value
    ending = {signal.SIGTERM, signal.SIGHUP, signal.SIGINT}
    ending = {number for number in ending if signal.getsignal(number) != signal.SIG_IGN}  # nohup
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, ending | {signal.SIGCHLD})
    join(namespaces.pop("pid"))
    child = os.fork()
    if not child:
        become(argv, namespaces, here)
    end_like(wait_for(child, f"{MARK}={value}".encode(), ending))


if __name__ == "__main__":
    main()
