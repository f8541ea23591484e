"""The parts of a host of a practice cluster: its files, and the first program it runs.

All files of a cluster are in one folder, which is removed with the cluster. A host sees some of
these files in place of the machine's own files, because of mounts that only this host has. The
machine itself does not change.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
from pathlib import Path

from .enter import MARK

SYSTEM_PATHS = "/usr/local/sbin:/usr/sbin:/sbin"  # of daemons, which are often not on PATH

SSHD = """\
Port 22
HostKey {ssh}/host_key
AuthorizedKeysFile {ssh}/key.pub
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PidFile none
MaxStartups 200
MaxSessions 200
AcceptEnv {mark}
SetEnv "PATH={path}"
"""

# Nothing of this is in doubt, so nothing may ask or wait: a host that does not answer is an error.
SSH = """\
Host *
  IdentityFile {ssh}/key
  IdentitiesOnly yes
  IdentityAgent none
  StrictHostKeyChecking yes
  UserKnownHostsFile {ssh}/known_hosts
  GlobalKnownHostsFile /dev/null
  BatchMode yes
  ConnectTimeout 5
  LogLevel ERROR
  SendEnv {mark}
"""

# The first process of a host, and the parent of what its programs leave behind: sshd.
INIT = """\
set -e
mount -n -t proc proc /proc
echo {host} > /proc/sys/kernel/hostname
mount -n -t tmpfs tmpfs /dev/shm
mount -n --bind {folder}/hosts /etc/hosts
mount -n --bind {ssh}/ssh_config /etc/ssh/ssh_config
# An account whose password is locked could not come in by its key either.
mount -n --bind {ssh}/shadow /etc/shadow
# Keys and settings of the user are neither used nor seen.
if [ -d {home}/.ssh ]; then mount -n -t tmpfs -o mode=700 tmpfs {home}/.ssh; fi
# What the user's shell runs at a login may take long, and breaks off where a login is killed.
for file in .bashrc .bash_profile .bash_login .profile .zshenv .cshrc .tcshrc; do
  if [ -f {home}/$file ]; then mount -n --bind /dev/null {home}/$file; fi
done
# Debian's sshd wants this folder, which must not come to be on the machine itself: the host gets a
# /run of its own that has all that is in the machine's.
if [ ! -d /run/sshd ]; then
  mkdir /dev/shm/run
  mount -n -t tmpfs -o mode=755 tmpfs /dev/shm/run
  mkdir -m 755 /dev/shm/run/sshd
  for entry in /run/*; do
    if [ -L "$entry" ]; then cp -P "$entry" "/dev/shm$entry"
    elif [ -d "$entry" ]; then mkdir "/dev/shm$entry"; mount -n --rbind "$entry" "/dev/shm$entry"
    else : > "/dev/shm$entry"; mount -n --bind "$entry" "/dev/shm$entry"
    fi
  done
  mount -n --move /dev/shm/run /run
  rmdir /dev/shm/run
fi
{daemons}
exec {sshd} -D -e -f {ssh}/sshd_config
"""


def find(program):
    """Return the path of a program; None if it is not installed. Search the folders of daemons,
    too."""
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_PATHS}")


def write_files(folder, addresses, slurm):
    """Write the files of a cluster.

    Parameters
    ----------
    folder : Path
        An existing empty folder.
    addresses : dict of str to str
        The address of each host, by its name.
    slurm : bool
        Whether the cluster has Slurm.
    """
    ssh = folder / "ssh"
    for part in ("ssh", "log", "init", "start"):
        (folder / part).mkdir()
    _make_keys(ssh)
    host_key = " ".join((ssh / "host_key.pub").read_text().split()[:2])
    known = [f"{host},{address} {host_key}\n" for host, address in addresses.items()]
    (ssh / "known_hosts").write_text("".join(known))
    names = [f"{address} {host}\n" for host, address in addresses.items()]
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(names))
    (ssh / "ssh_config").write_text(SSH.format(ssh=ssh, mark=MARK))
    path = os.environ.get("PATH", os.defpath)
    (ssh / "sshd_config").write_text(SSHD.format(ssh=ssh, mark=MARK, path=path))
    (ssh / "shadow").touch(mode=0o600)
    (ssh / "shadow").write_text(f"{pwd.getpwuid(0).pw_name}:*:::::::\n")
    if slurm:
        write_slurm_files(folder, [host for host in addresses if host != "login"])
    for host in addresses:
        daemons = slurm_lines(folder, host, find) if slurm else ""
        (folder / "start" / host).write_text(
            INIT.format(
                host=host, folder=folder, ssh=ssh, home=pwd.getpwuid(0).pw_dir, daemons=daemons,
                sshd=find("sshd"),
            )
        )  # fmt: skip


def _make_keys(ssh):
    """Make one key for all hosts, and one key for the only user."""
    for name in ("host_key", "key"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "practice", "-f", ssh / name]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def start_argv(folder, host):
    """Return the command that turns a process into a host.

    Linux ends this program when the process that started it ends for any reason. Then all other
    processes of the host end, too.
    """
    return [
        *("setpriv", "--pdeathsig", "KILL"),
        *("unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child=KILL"),
        *("sh", Path(folder, "start", host)),
    ]


CPUS = 4  # of each node, whatever the machine has: the same requests fit everywhere
SLURM_PROGRAMS = {
    "munged": "munge",
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "sinfo": "slurm-wlm",
}

SLURM = """\
ClusterName=practice
SlurmctldHost=login
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={munge}/socket
MpiDefault=pmi2
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
StateSaveLocation={state}/controller
SlurmdSpoolDir={state}/%n
SlurmctldPidFile={state}/slurmctld.pid
SlurmdPidFile={state}/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld
SlurmdLogFile={folder}/log/slurmd.%n
SlurmctldTimeout=30
SlurmdTimeout=30
ReturnToService=2
EnforcePartLimits=ALL
KillWait=2
MinJobAge=600
CompleteWait=0
SchedulerParameters=sched_min_interval=0,sched_interval=1,bf_interval=1,batch_sched_delay=0
MailProg=/bin/true
NodeName={nodes} CPUs={cpus} Sockets=1 CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory=4000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=5 State=UP
"""

CGROUP = """\
CgroupPlugin=cgroup/v1
CgroupAutomount=no
ConstrainCores=no
ConstrainRAMSpace=no
"""


def write_slurm_files(folder, nodes):
    """Write Slurm's settings, and munge's key, for this cluster only."""
    state, munge, settings = folder / "slurm_state", folder / "munge", folder / "slurm"
    for part in (state, state / "controller", munge, settings, *(state / node for node in nodes)):
        part.mkdir()
    (munge / "key").touch(mode=0o600)
    (munge / "key").write_bytes(secrets.token_bytes(128))
    (settings / "cgroup.conf").write_text(CGROUP)
    text = SLURM.format(folder=folder, state=state, munge=munge, nodes=",".join(nodes), cpus=CPUS)
    (settings / "slurm.conf").write_text(text)


def slurm_lines(folder, host, find):
    """Return the lines of shell that start a host's part of Slurm. One munged serves all hosts,
    through its socket."""
    munge, log = folder / "munge", folder / "log"
    lines = [f"mount -n --bind {folder}/slurm /etc/slurm"]
    if host == "login":
        lines += [
            f"{find('munged')} --force --socket={munge}/socket --key-file={munge}/key "
            f"--pid-file={munge}/pid --seed-file={munge}/seed --log-file={log}/munged",
            f"{find('slurmctld')} -D -c > {log}/slurmctld.out 2>&1 &",
        ]
    else:
        lines.append(f"{find('slurmd')} -D -N {host} > {log}/slurmd.{host}.out 2>&1 &")
    return "\n".join(lines)
