"""What a host without a scheduler has, and which folders it shares with others; for `sites learn`.

    describe_host.py describe PYTHON       hardware, network and software, as one line of JSON
    describe_host.py write TOKEN FOLDER... write a probe file to each folder; prints where it is visible
    describe_host.py read TOKEN FOLDER...  print where the probe file of another host is visible
    describe_host.py remove TOKEN FOLDER...

Sent to the host as text. Self-contained: standard library of Python 3.6 or later.
"""

import contextlib
import fcntl
import glob
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

SIOCGIFADDR, SIOCGIFNETMASK = 0x8915, 0x891B  # linux/sockios.h
Ask = Callable[[List[str], float], Tuple[int, str]]
SMI_S, PROGRAM_S = 30.0, 10.0
"""nvidia-smi takes this long on a node whose persistence daemon does not run."""
FOLDER_S = 8.0
"""A folder on a file server that does not answer is left."""
APPEARS_S = 3.0
"""How late a new file may become visible on another host."""
RUNTIMES = ("apptainer", "singularity", "podman-hpc", "shifter", "ch-run", "podman", "docker")
VERSIONS = """\
import sys, platform
try:
    from importlib.metadata import version
    torch = version("torch")
except Exception:
    torch = ""
print(platform.python_version(), torch)
"""
NETWORK_FILES = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "beegfs_nodev", "ceph", "cifs", "glusterfs", "wekafs")
LONGEST, MOST = 100, 64
"""Characters of a text, and items of a list."""


def describe(python: str) -> Dict[str, Any]:
    """What the host has. `python` is the interpreter of hpc-launch where it was asked."""
    found, faults = {}, []  # type: Dict[str, Any], List[str]
    measures = {
        "machine": machine,
        "cpus": lambda: len(os.sched_getaffinity(0)),
        "threads_per_core": threads_per_core,
        "memory": lambda: memory_mib()[1],
        "arch": lambda: text(os.uname().machine),
        "gpus": lambda: (nvidia() or amd())[:MOST],
        "interfaces": lambda: interfaces()[:MOST],
        "fabric": fabric,
        "python": lambda: versions("python3"),
        "launcher_python": lambda: versions(python),
        "pdsh": pdsh,
        "runtimes": lambda: [name for name in RUNTIMES if shutil.which(name)],
        "folders": folders,
    }  # type: Dict[str, Any]
    for name, measure in measures.items():
        try:
            found[name] = measure()
        except Exception as error:  # hosts can fail in any way
            faults.append(text("%s: %s: %s" % (name, type(error).__name__, error)))
    return {key: value for key, value in dict(found, faults=faults).items() if value is not None}


def text(value: object) -> str:
    """A value as short printable ASCII."""
    return "".join(one if " " <= one <= "~" else "?" for one in str(value).strip()[:LONGEST])


def answer(words: List[str], limit: float) -> Tuple[int, str]:
    """Exit code and output of a program. Raises OSError and subprocess.TimeoutExpired."""
    done = subprocess.run(  # noqa: PLW1510 - the callers look at the exit code
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit
    )
    return done.returncode, done.stdout.decode("utf-8", "replace")


def output(words: List[str], limit: float = PROGRAM_S) -> List[str]:
    """The lines that a program prints; none if it fails."""
    code, said = answer(words, limit)
    return said.splitlines() if code == 0 else []


def line(path: str) -> str:
    """The first line of a file; '' if it cannot be read."""
    try:
        with open(path) as file:
            return file.readline(4096).strip()
    except (OSError, ValueError):
        return ""


def machine() -> str:
    """What two names of one machine have in common, and two containers on it have not."""
    return "%s %s" % (line("/proc/sys/kernel/random/boot_id"), os.readlink("/proc/self/ns/net"))


def threads_per_core() -> int:
    """Hardware threads of a core that are in use."""
    return 2 if line("/sys/devices/system/cpu/smt/active") == "1" else 1


def memory_mib() -> Tuple[int, int]:
    """(available, total) memory of the node."""
    with open("/proc/meminfo") as file:
        rows = dict(row.split(":", 1) for row in file if ":" in row)
    available, whole = (int(rows.get(key, "0 kB").split()[0]) // 1024 for key in ("MemAvailable", "MemTotal"))
    return available, whole


def nvidia() -> List[Dict[str, Any]]:
    """The GPUs by nvidia-smi."""
    if not shutil.which("nvidia-smi"):
        return []
    return [
        {"vendor": "nvidia", "model": text(model), "memory": int(size) if size.isdigit() else 0, "driver": text(driver)}
        for model, size, driver in rows_of(ask_nvidia("name,memory.total,driver_version", answer)[1], 3)
    ]


def ask_nvidia(fields: str, ask: Ask, what: str = "gpu") -> Tuple[int, str]:
    """Exit code and answer of nvidia-smi about each GPU, or each process on one."""
    return ask(["nvidia-smi", "--query-%s=%s" % (what, fields), "--format=csv,noheader,nounits"], SMI_S)


def rows_of(text: str, columns: int) -> List[List[str]]:
    """The lines of nvidia-smi's answer that are complete, as words."""
    rows = ([word.strip() for word in line.split(",")] for line in text.split("\n")[:-1])
    return [row for row in rows if len(row) == columns]


def amd() -> List[Dict[str, Any]]:
    """The GPUs by the files of AMD's driver."""
    found = []
    for node in sorted(glob.glob("/sys/class/kfd/kfd/topology/nodes/*")):
        properties = values(os.path.join(node, "properties"))
        if int(properties.get("simd_count", "0")) == 0:
            continue
        version = int(properties.get("gfx_target_version", "0"))  # 90010 is gfx90a
        model = "gfx%d%x%x" % (version // 10000, version // 100 % 100, version % 100)
        banks = [values(path) for path in glob.glob(os.path.join(node, "mem_banks", "*", "properties"))]
        size = sum(int(bank.get("size_in_bytes", "0")) for bank in banks) >> 20
        driver = text(line("/sys/module/amdgpu/version"))
        found.append({"vendor": "amd", "model": model, "memory": size, "driver": driver})
    return found


def values(path: str) -> Dict[str, str]:
    """The `name value` lines of a file."""
    with open(path) as file:
        rows = [row.split() for row in file]
    return {row[0]: row[1] for row in rows if len(row) == 2}


def interfaces() -> List[Dict[str, Any]]:
    """The interfaces with an IPv4 address other than loopback; `speed` in Mb/s, 0 if unknown."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        for _, name in socket.if_nameindex():
            if not re.match(r"[A-Za-z0-9][A-Za-z0-9._@-]*\Z", name):
                continue
            request = struct.pack("256s", name.encode()[:15])
            try:
                address = socket.inet_ntoa(fcntl.ioctl(one.fileno(), SIOCGIFADDR, request)[20:24])
                mask = fcntl.ioctl(one.fileno(), SIOCGIFNETMASK, request)[20:24]
            except OSError:
                continue
            if address.startswith("127."):
                continue
            speed = line("/sys/class/net/%s/speed" % name)
            found.append(
                {
                    "name": name,
                    "address": address,
                    "prefix": "".join(map("{:08b}".format, mask)).count("1"),
                    "speed": int(speed) if speed.isdigit() else 0,
                }
            )
    return found


def interface_of(address: str) -> str:
    """The interface with an address of this host; '' if unknown."""
    if ":" in address:
        number = socket.inet_pton(socket.AF_INET6, address).hex()
        with open("/proc/net/if_inet6") as table:
            return ([row.split()[-1] for row in table if row.startswith(number)] or [""])[0]
    if address.startswith("127."):
        return "lo"
    return next((one["name"] for one in interfaces() if one["address"] == address), "")


def versions(python: str) -> Optional[Dict[str, str]]:
    """The versions of an interpreter and of its PyTorch; None if there is no such interpreter."""
    if not shutil.which(python):
        return None
    rows = output([python, "-I", "-c", VERSIONS])
    words = rows[-1].split() if rows else []
    return {"version": text(words[0]), "torch": text(words[1]) if len(words) > 1 else ""} if words else None


def pdsh() -> Optional[str]:
    """How pdsh connects by default, such as `rsh`."""
    if not shutil.which("pdsh"):
        return None
    default = os.environ.get("PDSH_RCMD_TYPE", "")
    rows = [row for row in output(["pdsh", "-V"]) if "(default: " in row]
    return text(default or (rows[0].partition("(default: ")[2].rstrip(")") if rows else "unknown"))


def folders() -> List[str]:
    """Folders that hosts may share: the user's home, file systems of a server, and those that variables name."""
    with open("/proc/mounts") as file:
        rows = [row.split() for row in file]
    mounts = [row[1] for row in rows if len(row) > 3 and row[2] in NETWORK_FILES]
    named = [os.environ.get(name, "") for name in ("SCRATCH", "WORK", "PROJECT", "DATA")]
    known = [os.path.expanduser("~"), *named, *mounts]
    return [path for path in dict.fromkeys(known) if path.startswith("/") and text(path) == path][:16]


def fabric() -> str:
    """The family of the fast network, by the node's adapters."""
    ports = sorted(glob.glob("/sys/class/infiniband/*/ports/*"))
    adapters, links = [port.split("/")[4] for port in ports], {line(port + "/link_layer") for port in ports}
    if any(name.startswith("hsn") for _, name in socket.if_nameindex()):
        return "slingshot"
    if any(name.startswith("hfi1") for name in adapters):
        return "omni-path"
    if any(name.startswith(("efa", "rdmap")) for name in adapters):
        return "efa"
    return "infiniband" if "InfiniBand" in links else "roce" if "Ethernet" in links else "ethernet"


def probe(action: str, token: str, paths: List[str]) -> Dict[str, bool]:
    """Write, read or remove the probe file in each folder. Returns in which folders that was done."""
    works = {"write": write, "read": read, "remove": os.unlink}  # type: Dict[str, Callable[[str], None]]
    return side_by_side(lambda path: works[action](os.path.join(path, ".hpc-launch-probe-%s" % token)), paths, FOLDER_S)


def side_by_side(work: Callable[[str], Any], items: List[str], seconds: float) -> Dict[str, bool]:
    """Whether the work was done in time, for each item in a thread of its own, which may hang."""
    done = set()

    def one(item: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            work(item)
            done.add(item)

    threads = [threading.Thread(target=one, args=(item,), daemon=True) for item in items]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0.0))
    return {item: item in done for item in items}


def write(file: str) -> None:
    """Create an empty file, which nobody else may have created."""
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))


def read(file: str) -> None:
    """Wait until the file is visible. Raises OSError if it does not appear."""
    end = time.monotonic() + APPEARS_S
    while True:
        try:
            os.lstat(file)
        except FileNotFoundError:
            if time.monotonic() > end or not os.path.isdir(os.path.dirname(file)):
                raise
            time.sleep(0.2)
        else:
            return


def main(words: List[str]) -> None:
    """Do it, and print the result."""
    result = describe(words[1]) if words[0] == "describe" else probe(words[0], words[1], words[2:])
    print(json.dumps(result), flush=True)
    os._exit(0)  # a thread may hang in a file system


if __name__ == "__main__":
    main(sys.argv[1:])
