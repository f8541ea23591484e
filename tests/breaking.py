"""Ways to break one host of a practice cluster, by mounts that this host alone sees."""

import os
import re
import signal
import site
import subprocess
from importlib import metadata
from pathlib import Path

LIMIT_S = 120  # of what takes seconds; a machine may be busy
OTHER_PYTHON = (
    "import sys; sys.version_info = (3, 99, 1, 'final', 0); "
    "sys.version = '3.99.1 ' + sys.version.partition(' ')[2]\n"
)


def on(cluster, host, script):
    """Run a few lines of shell on a host."""
    done = cluster.run(host, ["sh", "-ec", script], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr


def replace(cluster, host, path, draft, change):
    """Have one host see a file changed; ``change`` gets its text."""
    draft.write_text(change(Path(path).read_text()))
    draft.chmod(Path(path).stat().st_mode & 0o777)
    on(cluster, host, f"mount -n --bind '{draft}' '{path}'")


def hide(cluster, host, *folders):
    """Have a host see empty folders in the place of some."""
    for folder in folders:
        on(cluster, host, f"mount -n -t tmpfs tmpfs '{folder}'")


def hide_program(cluster, host, *programs):
    """Have a host see files that cannot be run in the place of programs."""
    for program in programs:
        on(cluster, host, f"mount -n --bind /dev/null '{program}'")


def make_read_only(cluster, host, folder):
    """Have a host see a folder in which it cannot write."""
    on(cluster, host, f"mount -n --bind '{folder}' '{folder}'")
    on(cluster, host, f"mount -n -o remount,bind,ro '{folder}'")


def stop_sshd(cluster, host):
    """A host's sshd takes connections, and says nothing."""
    os.kill(int((cluster.folder / "init" / host).read_text().split()[0]), signal.SIGSTOP)


def change_sshd(cluster, host, draft, change, port=22):
    """Have a host's sshd read changed settings, and wait until it has."""
    replace(cluster, host, cluster.folder / "ssh" / "sshd_config", draft, change)
    on(cluster, host, "kill -HUP 1")
    on(cluster, host, f"until test \"$(ssh -p {port} localhost -o HostKeyAlias={host} "
       f"'echo $MARKED')\" = so; do sleep 0.05; done")  # fmt: skip


def marked(text, more=""):
    """Settings of sshd that show that they were read; ``more`` are further variables."""
    return re.sub(r"(SetEnv .*)", rf"\1 MARKED=so {more}", text)


def close_sshd(cluster, host, draft):
    """Nobody listens any more where ssh is expected."""
    moved = lambda text: marked(text.replace("Port 22", "Port 2222"))  # noqa: E731
    change_sshd(cluster, host, draft, moved, port=2222)


def refuse_key(cluster, host, draft):
    """The host lets nobody in."""
    replace(cluster, host, cluster.folder / "ssh" / "key.pub", draft, lambda text: "")


def switch_off(cluster, host):
    """The host is gone: all that ran on it, and its network."""
    pid = int((cluster.folder / "init" / host).read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    names = cluster._network.namespaces[1:]  # after the switch's: login, node1, ...
    name = names[list(cluster.addresses).index(host)]
    subprocess.run(["ip", "netns", "del", name], check=True)


def install_other_python(cluster, host, draft):
    """The Python there says that it is another version, to all that it runs."""
    (path, *_) = (
        path for place in site.getsitepackages() for path in sorted(Path(place).glob("*.pth"))
    )
    replace(cluster, host, path, draft, lambda text: OTHER_PYTHON + text)


def place_of(package):
    """The folders of an installed package."""
    found = metadata.distribution(package)
    tops = {file.parts[0] for file in found.files if file.parts[0] not in ("..", "bin")}
    places = [Path(found.locate_file(top)) for top in sorted(tops)]
    return [place for place in places if place.is_dir() and package in place.name]


def processes_on(cluster):
    """The names of all processes of each host that still is, by the host."""
    hosts, found = {}, {}
    for path in (cluster.folder / "init").iterdir():
        pid = path.read_text().split()[0]
        space = _process_space(pid)
        if space:
            hosts[space] = path.name
            found[path.name] = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        host = hosts.get(_process_space(pid))
        if host:
            try:
                found[host].append(Path(f"/proc/{pid}/comm").read_text().strip())
            except OSError:  # it has just ended
                pass
    return {host: sorted(names) for host, names in sorted(found.items())}


def _process_space(pid):
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None
