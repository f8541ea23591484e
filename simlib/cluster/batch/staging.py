"""Carries a job's files between hosts that share no folder: ``staging.py PLAN MPIEXEC ... START``.

This program needs only the standard library, and runs mpiexec. Through one ssh for each host, it
starts a copy of itself there, and each host makes a copy of the job's folder at the same path. The
program carries files until mpiexec has ended. The side that runs mpiexec is the *hub*. The hub gets
all files that ranks write, within `LOOK_S`. The hub sends each host the files that end a job and
the meeting place of ranks. It sends the host of rank 0 also the files that the judge there reads. A
host that sees the job's folder needs no copy. This file is long, because it is one program that
runs alone on hosts, with any Python.
"""

import contextlib
import fcntl
import json
import os
import queue
import re
import secrets
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

LOOK_S = 0.1
LAST_S = 20.0
"""After the ranks have ended, a host may be silent for this many seconds before its last message.
All hosts must remove their copies in the same time."""
OBEY_S = 5.0
"""Seconds in which mpiexec must end after a signal."""
LEAVE_S = 10.0
"""Seconds in which ranks must end before their copy of the folder is removed."""
TAKEN = ("job.json", "request.pkl", "start.py", "rank.sh")
WORK = "work"
"""The folder with the files that the learner sends with the job, see `ssh`."""
MARK = ".staged"
TO_ALL = ("end", "cancel", "meeting.json")
FIRST_COUNTS = ("refused", "died_early", "gone.json")
RANKS = re.compile(r"rank-(\d+)\.(\w+|stack-wanted)")
TO_JUDGE = ("json", "log", "err")
PIECE = 4 << 20
BLOCK = 16 << 10
"""The size of a block of a log, see `Files.changes`."""
SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=5")
SRUN = ("srun", "--overlap", "--mpi=none", "--nodes=1", "--ntasks=1", "--unbuffered", "--nodelist")


class Files:
    """The folder on one side, and the changes in it that the other side does not know yet.

    Parameters
    ----------
    folder : str
    log : list of int
        Two facts about op logs: the length of the header, and the place in the header that contains
        the used length.
    """

    def __init__(self, folder, log):
        self.folder = folder
        self.header, self.committed = log

    def names(self):
        """Return the names of all files except drafts and marks."""
        return [one.name for one in os.scandir(self.folder) if one.name[0] != "." and one.is_file()]

    def given(self):
        """Return the files that a new copy contains at first."""
        found = [name for name in TAKEN if os.path.exists(os.path.join(self.folder, name))]
        for place, _, names in os.walk(os.path.join(self.folder, WORK)):
            found += [os.path.relpath(os.path.join(place, name), self.folder) for name in names]
        return found

    def changes(self, name, told, is_last=False):
        """Return messages that bring a file on the other side up to date.

        ``told`` is the last state of the file that was sent, or None.

        With ``is_last``, all records of a log count, even if its header has not changed.

        Returns
        -------
        messages : list of (dict, bytes)
        told : object
            The value for the next call.
        """
        path = os.path.join(self.folder, name)
        try:
            with open(path, "rb") as file:
                stat = os.fstat(file.fileno())
                if name.endswith(".log"):
                    return self._of_log(name, file, told, is_last)
                if name.endswith((".out", ".err")):
                    return self._of_growing(name, file, stat.st_size, told)
                now = [stat.st_size, stat.st_mtime_ns]
                if now == told:
                    return [], told
                return [({"name": name}, file.read())], now
        except FileNotFoundError:  # a wish that was granted, say
            return [], told

    def _of_growing(self, name, file, size, told):
        start = told or 0
        if told is not None and size <= start:
            return [], told
        file.seek(start)
        content = file.read(PIECE)
        return [({"name": name, "at": start}, content)], start + len(content)

    def _of_log(self, name, file, told, is_last):
        """Return the changed blocks of a log, and then the header, which confirms them.

        Old blocks change, too, because the records of ops are completed in place when the ops
        end.
        """
        header = file.read(self.header)
        before, known = told or (b"", {})
        if len(header) < self.header or (header == before and not is_last):
            return [], told
        messages, room = [], PIECE
        end = int.from_bytes(header[self.committed : self.committed + 8], sys.byteorder)
        for start in range(self.header, end, BLOCK):
            if room <= 0:  # the rest, and the header, at the next look
                return messages, (before, known)
            block = file.read(min(BLOCK, end - start))
            if known.get(start) != hash(block):
                known[start] = hash(block)
                messages.append(({"name": name, "at": start}, block))
                room -= len(block)
        if header != before:
            messages.append(({"name": name, "at": 0}, header))
        return messages, (header, known)

    def apply(self, message, content):
        """Apply a change that the other side has sent."""
        path = os.path.join(self.folder, message["name"])
        if "at" in message:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                file.seek(message["at"])
                file.write(content)
            return
        place, name = os.path.split(path)
        os.makedirs(place, exist_ok=True)
        draft = os.path.join(place, f".{name}.{os.getpid()}")
        with open(draft, "wb") as file:
            file.write(content)
        (name_once if name in FIRST_COUNTS else os.replace)(draft, path)


def name_once(draft, path):
    """Give a draft its final name, unless a file of this name exists. So the first writer wins."""
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    except OSError:  # a filesystem without links
        os.replace(draft, path)
        return
    os.unlink(draft)


class Pipe:
    """Sends and receives messages over two files. Each message begins with a line of JSON, which
    says how many bytes follow."""

    def __init__(self, reads, writes):
        self.reads, self.writes = reads, writes
        self._buffer = bytearray()

    def send(self, message, content=b""):
        """Send one message."""
        head = json.dumps({**message, "nbytes": len(content)}).encode()
        left = memoryview(head + b"\n" + content)
        while left:
            left = left[os.write(self.writes, left) :]

    def receive(self):
        """Return the next message. Raise an EOFError if the other side has ended."""
        while (end := self._buffer.find(b"\n")) < 0:
            self._read_on()
        message = json.loads(self._buffer[:end])
        length = end + 1 + message["nbytes"]
        while len(self._buffer) < length:
            self._read_on()
        content = bytes(self._buffer[end + 1 : length])
        del self._buffer[:length]
        return message, content

    def has_more(self):
        """Whether at least a part of the next message has arrived."""
        return bool(self._buffer)

    def _read_on(self):
        content = os.read(self.reads, 1 << 20)
        if not content:
            raise EOFError
        self._buffer += content


class Spoke:
    """The side of another host: it keeps the copy of the folder, and reports changes in the
    copy."""

    def __init__(self, pipe):
        self._pipe = pipe
        self._came = set(TAKEN)
        self._told = {}
        self._locked = []
        self._is_last = threading.Event()
        self._said = queue.SimpleQueue()

    def serve(self):
        """Carry files until the hub ends the job or vanishes. Then remove the copy."""
        try:
            message, _ = self._pipe.receive()
        except EOFError:  # another host was refused
            return
        folder = message["folder"]
        if os.path.exists(os.path.join(folder, message["mark"])):
            return self._pipe.send({"is": "shared"})
        try:
            self._make(folder, message["mark"])
        except OSError as error:
            return self._pipe.send({"is": "refused", "why": str(error)})
        self._files = Files(folder, message["log"])
        threading.Thread(target=self._listen, daemon=True).start()
        with contextlib.suppress(BrokenPipeError):
            self._carry()
        if self._said.get() == "gone":
            open(os.path.join(folder, "end"), "a").close()
        await_ranks(folder)
        shutil.rmtree(folder, ignore_errors=True)

    def _make(self, folder, mark):
        """Make the copy of the folder. While the mark of a copy is locked, the copy is in use."""
        staged = os.path.join(folder, MARK)
        if os.path.exists(staged):
            self._lock(staged, "r+")
            shutil.rmtree(folder)  # a copy of a job that is no more
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        os.mkdir(folder, 0o700)
        draft = f"{staged}.{os.getpid()}"
        self._lock(draft, "w")
        os.rename(draft, staged)
        open(os.path.join(folder, mark), "w").close()

    def _lock(self, path, mode):
        file = open(path, mode)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(
                f"{os.path.dirname(path)} already exists, and belongs to a job that still runs. "
                "Each host numbers its own jobs from 1: name another folder with folder=..."
            ) from None
        self._locked.append(file)  # until this process ends

    def _carry(self):
        self._pipe.send({"is": "there"})
        while not self._is_last.wait(LOOK_S):
            self._tell()
        while self._tell(is_last=True):
            pass
        self._pipe.send({"is": "last"})

    def _listen(self):
        """Handle the hub's messages. This runs in a thread of its own, because both sides may send
        much at once."""
        try:
            while True:
                message, content = self._pipe.receive()
                if "name" in message:
                    self._came.add(message["name"])
                    self._files.apply(message, content)
                else:
                    self._is_last.set()
                    if message["is"] == "over":
                        return self._said.put("over")
        except (EOFError, OSError):
            self._said.put("gone")
            self._is_last.set()

    def _tell(self, is_last=False):
        """Send the changes in this copy to the hub; returns whether there were any."""
        sent = False
        for name in self._files.names():
            if name in self._came:
                continue
            told = self._told.get(name)
            messages, self._told[name] = self._files.changes(name, told, is_last)
            for message, content in messages:
                self._pipe.send(message, content)
                sent = True
        return sent


class Hub:
    """The side of the host from which the job was submitted. Its folder gets all files."""

    def __init__(self, folder, plan):
        self._files = Files(folder, plan["log"])
        self._plan = plan
        self._mark = f".staged-{secrets.token_hex(4)}"
        self._spokes = {}
        self._told = {}
        self._owner = {}
        self._started = {}
        self._heard = time.monotonic()
        self.is_to_end = False

    def stage(self):
        """Let hosts make copies. Return whether every host has a copy or sees this folder."""
        open(os.path.join(self._files.folder, self._mark), "w").close()
        hosts = self._plan["hosts"]
        words, hosts = (SSH, hosts) if hosts else (SRUN, _nodes())
        for host in hosts:
            self._started[host] = _start([*words, host], self._plan["python"])
        for host, process in self._started.items():  # one by one: some may share one copy
            pipe = Pipe(process.stdout.fileno(), process.stdin.fileno())
            place = {"folder": self._files.folder, "mark": self._mark, "log": self._plan["log"]}
            try:
                pipe.send(place)
                answer, _ = pipe.receive()
            except (EOFError, BrokenPipeError):  # ssh has said why
                return False
            if answer["is"] == "refused":
                self._refuse(f"simlib cannot copy the job's folder to {host}: {answer['why']}")
                return False
            if answer["is"] == "there":
                self._spokes[host] = pipe
                for name in self._files.given():
                    self._send(host, name)
        return True

    def carry_while(self, process):
        """Carry files until the process has ended. End the process when ``is_to_end`` returns
        True."""
        kill_at = None
        while process.poll() is None:
            if self.is_to_end and kill_at is None:
                process.terminate()
                kill_at = time.monotonic() + OBEY_S
            elif kill_at is not None and time.monotonic() > kill_at:
                process.kill()
            self._listen(LOOK_S)
            self._hand_on()
        self._hand_on()

    def carry_the_last(self):
        """Handle messages that are still on their way. Give up a host that is silent for
        `LAST_S`."""
        waiting = set(self._spokes)
        for host in list(waiting):
            self._say(host, {"is": "last"})
        self._heard = time.monotonic()
        while waiting & set(self._spokes) and time.monotonic() < self._heard + LAST_S:
            waiting -= self._listen(LOOK_S)

    def leave(self):
        """Tell the hosts to remove their copies. A host that does not get this message notices that
        the hub has ended."""
        for pipe in self._spokes.values():
            with contextlib.suppress(OSError):
                pipe.send({"is": "over"})
        for process in self._started.values():
            process.stdin.close()
        deadline = time.monotonic() + LAST_S
        for process in self._started.values():
            try:
                process.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _listen(self, wait_s):
        """Handle new messages; returns the hosts that have sent their last message."""
        last = set()
        while self._spokes:
            reads = {pipe.reads: host for host, pipe in self._spokes.items()}
            ready = [pipe.reads for pipe in self._spokes.values() if pipe.has_more()]
            ready = ready or select.select(list(reads), [], [], wait_s)[0]
            if not ready:
                return last
            wait_s = 0
            for host in (reads[number] for number in ready):
                try:
                    message, content = self._spokes[host].receive()
                except EOFError:
                    self._lose(host)
                    continue
                self._heard = time.monotonic()
                if "name" in message:
                    self._take(host, message, content)
                else:
                    last.add(host)
        time.sleep(wait_s)
        return last

    def _take(self, host, message, content):
        name = message["name"]
        if os.path.basename(name) != name:
            return
        self._files.apply(message, content)
        self._owner[name] = host
        rank = RANKS.fullmatch(name)
        if rank and rank[2] != "stack-wanted":
            self._owner[rank[1]] = host

    def _hand_on(self):
        for name in self._files.names():
            for host in list(self._spokes):
                if self._owner.get(name) != host and self._concerns(host, name):
                    self._send(host, name)

    def _concerns(self, host, name):
        """Whether a host needs a file."""
        if name in TO_ALL:
            return True
        rank = RANKS.fullmatch(name)
        if not rank:
            return False
        if rank[2] == "stack-wanted":
            return self._owner.get(rank[1]) == host
        return rank[2] in ("answer", "exit") or (rank[2] in TO_JUDGE and self._is_judge(host))

    def _is_judge(self, host):
        return self._owner.get("0") == host

    def _send(self, host, name):
        told = self._told.get((host, name))
        if name.endswith(".answer") and not self._is_judge(host):  # that it is there is enough
            messages, now = ([], told) if told else ([({"name": name}, b"")], [True])
        else:
            messages, now = self._files.changes(name, told)
        self._told[host, name] = now
        for message, content in messages:
            self._say(host, message, content)

    def _say(self, host, message, content=b""):
        try:
            self._spokes[host].send(message, content)
        except KeyError:
            pass
        except BrokenPipeError:
            self._lose(host)

    def _lose(self, host):
        """Forget the ranks of a host that has vanished, or whose ssh has ended."""
        del self._spokes[host]
        self._refuse(
            f"the connection to {host} broke while its ranks ran: is it switched on, and in this "
            "network?"
        )
        open(os.path.join(self._files.folder, "end"), "a").close()

    def _refuse(self, words):
        self._files.apply({"name": "refused"}, words.encode())


def _nodes():
    """Return the hosts that Slurm has allocated."""
    words = ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]]
    return subprocess.run(words, stdout=subprocess.PIPE, text=True).stdout.split()


def _start(words, python):
    """Start the program on another host. ssh passes the words of the command to a shell."""
    command = [python, "-I", os.path.abspath(__file__), "--spoke"]
    command = [shlex.join(command)] if words[0] == "ssh" else command
    return subprocess.Popen(
        [*words, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )


def await_ranks(folder):
    """Wait until no process of the job's files in this folder runs, but at most `LEAVE_S`."""
    deadline = time.monotonic() + LEAVE_S
    while time.monotonic() < deadline and is_run(folder):
        time.sleep(LOOK_S)


def is_run(folder):
    """Whether some process has a file of this folder in its command; False without a /proc."""
    start = os.fsencode(os.path.join(folder, ""))
    for pid in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            if any(word.startswith(start) for word in file.read().split(b"\0")):
                return True
    return False


def main(plan, command):
    """Make the copies, run the command and carry files meanwhile. Return the command's exit
    code."""
    hub = Hub(os.path.dirname(command[-1]), plan)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        if not hub.stage():
            return 1
        signal.signal(signal.SIGTERM, lambda *_: setattr(hub, "is_to_end", True))
        process = subprocess.Popen(command)
        try:
            hub.carry_while(process)
        finally:
            process.terminate()  # where this could not go on
        hub.carry_the_last()
        return process.returncode if process.returncode >= 0 else 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        hub.leave()


if __name__ == "__main__":
    if sys.argv[1] == "--spoke":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a queue's: the hub has got it, too
        Spoke(Pipe(0, 1)).serve()
    else:
        sys.exit(main(json.loads(sys.argv[1]), sys.argv[2:]))
