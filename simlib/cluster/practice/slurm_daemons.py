"""Slurm on a practice cluster: its settings, and the daemons of each host.

The lines are those that a cluster without systemd, cgroups and a database needs.
"""

from __future__ import annotations

import secrets

CPUS = 4  # of each node, whatever the machine has: the same requests fit everywhere
PROGRAMS = {
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


def write_files(folder, nodes):
    """Write Slurm's settings, and munge's key: of this cluster only."""
    state, munge, settings = folder / "slurm_state", folder / "munge", folder / "slurm"
    for part in (state, state / "controller", munge, settings, *(state / node for node in nodes)):
        part.mkdir()
    (munge / "key").touch(mode=0o600)
    (munge / "key").write_bytes(secrets.token_bytes(128))
    (settings / "cgroup.conf").write_text(CGROUP)
    text = SLURM.format(folder=folder, state=state, munge=munge, nodes=",".join(nodes), cpus=CPUS)
    (settings / "slurm.conf").write_text(text)


def daemons(folder, host, find):
    """The lines that start a host's part of Slurm. munged serves all hosts, by its socket."""
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
