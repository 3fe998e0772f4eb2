"""Stand-ins for /sys, /proc and /dev of a node, as `parts/bind_ranks.sh` reads them: domains, CPUs and GPUs."""

from __future__ import annotations

from pathlib import Path

Topology = list[tuple[str, list[str]]]
"""Each NUMA domain: its CPUs as in /sys, and the PCI addresses of its GPUs."""


def listed(text: str) -> set[int]:
    pairs = [word.split("-") for word in text.split(",")]
    return {cpu for pair in pairs for cpu in range(int(pair[0]), int(pair[-1]) + 1)}


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def node(root: Path, topology: Topology, threads: int, vendor: str, allowed: str = "0-1023") -> None:
    """Write the files of a node; `threads`: how far apart the numbers of the two threads of a core are, or 0."""
    put(root / "proc/self/status", f"Name:\tbash\nCpus_allowed:\tff\nCpus_allowed_list:\t{allowed}\n")
    gpus = sorted((gpu, domain) for domain, (_, own) in enumerate(topology) for gpu in own)
    for domain, (cpus, _) in enumerate(topology):
        put(root / f"sys/devices/system/node/node{domain}/cpulist", f"{cpus}\n")
        for cpu in listed(cpus):
            siblings = f"{cpu % threads},{cpu % threads + threads}" if threads else f"{cpu}"
            put(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", f"{siblings}\n")
    for number, (gpu, domain) in enumerate(gpus):
        put(root / f"sys/bus/pci/devices/{gpu}/numa_node", f"{domain}\n")
        if vendor == "nvidia":
            uuid = f"GPU-{number:08x}-1111-2222-3333-444444444444"
            facts = f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nBus Location: \t {gpu}\nDevice Minor: \t {number}\n"
            put(root / f"proc/driver/nvidia/gpus/{gpu}/information", facts)
            put(root / f"dev/nvidia{number}", "")
        else:
            bus = int(gpu[5:7], 16) << 8
            facts = f"cpu_cores_count 0\nlocation_id {bus}\ndomain 0\ndrm_render_minor {128 + number}\n"
            put(root / f"sys/class/kfd/kfd/topology/nodes/{number + 1}/properties", facts)
            put(root / f"dev/dri/renderD{128 + number}", "")
    if vendor == "amd":
        put(root / "sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 64\ndrm_render_minor 0\n")
