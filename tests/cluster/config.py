"""The configuration files of a cluster, as text."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.cluster.settings import LOGIN, LOGIN_ADDRESS, USERS, Layout, Settings

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
NAME = "testcluster"
DATABASE = "slurm_acct_db"
CGROUPS = "/sys/fs/cgroup"


USER_PATH = f"{Path(sys.executable).parent}:{SYSTEM_PATH}"
"""The ``PATH`` of every user."""


def slurm_conf(layout: Layout, settings: Settings) -> str:
    """The text of slurm.conf. The notes say why a line differs from Slurm's default."""
    gpus = f" Gres=gpu:a100:{settings.gpus_per_node}" if settings.gpus_per_node else ""
    names = f"n[1-{settings.nodes}]" if settings.nodes > 1 else "n1"
    limits = f"Nodes={names} DefaultTime=00:10:00 MaxTime=01:00:00"
    lines = [
        f"ClusterName={NAME}",
        f"SlurmctldHost={LOGIN}({LOGIN_ADDRESS})",
        "SlurmUser=root",
        "AuthType=auth/munge",
        # A requeued job waits until its old credential has expired: 21 s, not two minutes.
        "AuthInfo=cred_expire=20",
        f"StateSaveLocation={layout.spool}/ctld",
        f"SlurmdSpoolDir={layout.spool}/%n",
        f"SlurmctldPidFile={layout.run}/slurmctld.pid",
        f"SlurmdPidFile={layout.run}/slurmd.%n.pid",
        f"SlurmctldLogFile={layout.logs}/slurmctld.log",
        f"SlurmdLogFile={layout.logs}/slurmd.%n.log",
        "SlurmctldDebug=verbose",
        "SlurmdDebug=verbose",
        # Without cgroups, if not asked for: they are the machine's, and one machine holds many nodes.
        f"ProctrackType=proctrack/{'cgroup' if settings.cgroups else 'linuxproc'}",
        f"TaskPlugin=task/{'cgroup' if settings.cgroups else 'none'}",
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=5",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "DefMemPerCPU=1024",
        # A node may claim more than the machine has.
        "SlurmdParameters=config_overrides",
        "ReturnToService=2",
        "MpiDefault=none",
        "MailProg=/bin/true",
        # The limits of the test process say nothing about a compute node.
        "PropagateResourceLimits=NONE",
        "MaxArraySize=10001",
        "MaxJobCount=20000",
        "JobRequeue=1",
        "MinJobAge=300",
        # SlurmdTimeout is short, so that a test sees a dead node in good time; KillWait is the default.
        "KillWait=30",
        "SlurmdTimeout=20",
        "InactiveLimit=0",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=bf_interval=2,sched_interval=2,sched_min_interval=0",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        f"Prolog={layout.config}/prolog.sh",
        f"MailProg={layout.config}/mail.sh",
        *_accounting_lines(settings),
        *(["GresTypes=gpu"] if gpus else []),
        f"NodeName={names} CPUs=8 RealMemory=65536 State=UNKNOWN{gpus}",
        # Jobs in `low` are the only ones that may be preempted, by those of any other partition.
        f"PartitionName=gpu {limits} Default=YES PriorityTier=5 PreemptMode=OFF",
        f"PartitionName=short Nodes={names} DefaultTime=00:01:00 MaxTime=00:02:00 PriorityTier=5 PreemptMode=OFF",
        f"PartitionName=low {limits} PriorityTier=1",
        f"PartitionName=high {limits} PriorityTier=10 PreemptMode=OFF",
    ]
    return "\n".join(_merged(lines, settings.slurm_conf)) + "\n"


def _merged(lines: list[str], changes: tuple[str, ...]) -> list[str]:
    """Replace the lines whose key is set anew: Slurm complains, in every command, of a key twice."""
    keys = {line.partition("=")[0] for line in changes} - {"NodeName", "PartitionName"}
    return [line for line in lines if line.partition("=")[0] not in keys] + list(changes)


def _accounting_lines(settings: Settings) -> list[str]:
    if not settings.accounting:
        return ["AccountingStorageType=accounting_storage/none"]
    lines = [
        "AccountingStorageType=accounting_storage/slurmdbd",
        f"AccountingStorageHost={LOGIN}",
        "AccountingStoreFlags=job_comment",
    ]
    return [*lines, "AccountingStorageTRES=gres/gpu"] if settings.gpus_per_node else lines


def gres_conf(layout: Layout, settings: Settings) -> str:
    """The text of gres.conf: every node has the same fake devices."""
    if not settings.gpus_per_node:
        return ""
    last = settings.gpus_per_node - 1
    files = f"gpu[0-{last}]" if last else "gpu0"
    return f"Name=gpu Type=a100 File={layout.devices}/{files}\n"


def slurmdbd_conf(layout: Layout) -> str:
    """The text of slurmdbd.conf, which slurmdbd wants readable for its own user only."""
    return f"""\
AuthType=auth/munge
DbdHost={LOGIN}
DbdAddr={LOGIN_ADDRESS}
SlurmUser=root
DebugLevel=verbose
LogFile={layout.logs}/slurmdbd.log
PidFile={layout.run}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageUser=root
StorageLoc={DATABASE}
"""


def write_config(layout: Layout, settings: Settings) -> None:
    """Write what lies in ``/etc/slurm`` on every node."""
    # Slurm reads its cgroup plugin even where nothing uses it; 22.05 knows no 'disabled' yet.
    cgroup = "disabled" if settings.root and not settings.cgroups else "cgroup/v1"
    fault = layout.prolog_fault("$SLURMD_NODENAME")
    limits = "yes" if settings.cgroups else "no"
    texts = {
        "slurm.conf": slurm_conf(layout, settings),
        "gres.conf": gres_conf(layout, settings),
        # One such cluster at a time: Slurm 22.05 gives its groups a fixed name.
        "cgroup.conf": f"CgroupPlugin={cgroup}\nCgroupMountpoint={CGROUPS}\nConstrainRAMSpace={limits}\n",
        # Fails on the nodes for which a test has left a file.
        "prolog.sh": f'#!/bin/sh\n[ ! -e "{fault}" ]\n',
        # Keeps what Slurm gives it: subject and address (MailProg in slurm.conf(5)).
        "mail.sh": f'#!/bin/sh\necho "$*" >>{layout.mails}\n',
    }
    if settings.topology:
        texts["topology.conf"] = settings.topology
    if settings.accounting:
        texts["slurmdbd.conf"] = slurmdbd_conf(layout)
    for name, text in texts.items():
        (layout.config / name).write_text(text)
    for name in ("prolog.sh", "mail.sh"):
        (layout.config / name).chmod(0o755)
    if settings.accounting:
        (layout.config / "slurmdbd.conf").chmod(0o600)


def write_etc(etc: Path, layout: Layout, settings: Settings) -> None:
    """Change a private copy of ``/etc`` into that of the cluster's hosts."""
    hosts = ["127.0.0.1 localhost", f"{LOGIN_ADDRESS} {LOGIN}"]
    hosts += [f"{settings.address(node)} {node}" for node in settings.node_names]
    _replace(etc / "hosts", "\n".join(hosts) + "\n")
    # There is no name server inside: an unknown name must fail at once, not after a timeout.
    _replace(etc / "resolv.conf", "")
    _replace(etc / "nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files\n")
    _replace(etc / "hostname", f"{LOGIN}\n")
    _write_accounts(etc, layout)
    # For the shells that set PATH anew: a login, and a job submitted with --export=NONE.
    (etc / "profile.d").mkdir(exist_ok=True)
    _replace(etc / "profile.d" / "zz-cluster.sh", f"export PATH={USER_PATH}\n")
    _replace(etc / "slurm", None)
    (etc / "slurm").symlink_to(layout.config)


def _replace(path: Path, text: str | None) -> None:
    """Put a new file (or, for None, nothing) where a file, a link or a folder may be."""
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(path.name + ".machine"))
    else:
        path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text)


def _write_accounts(etc: Path, layout: Layout) -> None:
    """Leave the machine's system accounts, without members of their groups, and add the ordinary users."""
    _replace(etc / "subuid", "")
    _replace(etc / "subgid", "")
    ours = {
        "passwd": [f"{user.name}:x:{user.uid}:{user.uid}::{layout.home(user)}:/bin/bash" for user in USERS],
        "group": [f"{user.name}:x:{user.uid}:" for user in USERS],
    }
    for name, lines in ours.items():
        rows = [line.split(":") for line in (etc / name).read_text().splitlines()]
        system = [row if name == "passwd" else [*row[:3], ""] for row in rows if not 1000 <= int(row[2]) < 60000]
        # Written in place, which keeps owner and mode.
        (etc / name).write_text("".join(f"{line}\n" for line in [*map(":".join, system), *lines]))
    with (etc / "shadow").open("a") as shadow:
        shadow.writelines(f"{user.name}:*:19000:0:99999:7:::\n" for user in USERS)
