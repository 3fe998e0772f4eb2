"""Every long option of each container runtime, as its own source has them: no script may use another."""

from __future__ import annotations

_BOTH = (
    "app bind mount home overlay scratch workdir disable-cache shell cwd pwd hostname network network-args dns "
    "security apply-cgroups containlibs fusemount tmpdir boot fakeroot cleanenv compat contain containall nv "
    "nvccli rocm writable writable-tmpfs no-home no-mount no-init no-nv no-rocm pid no-pid ipc net netns-path "
    "uts userns keep-privs no-privs add-caps drop-caps allow-setuid env env-file no-umask no-eval blkio-weight "
    "blkio-weight-device cpu-shares cpus cpuset-cpus cpuset-mems memory memory-reservation memory-swap oom- "
    "kill-disable pids-limit device cdi-dirs"
).split()
"""cmd/internal/cli/action_flags.go of Apptainer 1.5 (917d66577) and SingularityCE (ec0433152), as far as they agree."""

_PODMAN_RUN = (
    "annotation attach authfile cap-add cap-drop cgroup-conf cgroup-parent cgroupns cgroups cidfile cpu-shares cpus "
    "cpuset-cpus device device-cgroup-rule dns entrypoint env env-file env-host env-merge expose group-add hostname "
    "hostuser http-proxy image-volume init interactive ip ipc label log-driver mac-address memory mount name network "
    "net no-hosts passwd personality pid pids-limit pod privileged publish pull quiet read-only requires restart rm "
    "rootfs secret security-opt shm-size stop-signal sysctl systemd timeout tmpfs tty tz uidmap ulimit umask unsetenv "
    "user userns uts volume volumes-from workdir"
).split()
"""podman-run(1) of podman 6.0 (c6580b4a52); some that limit resources are left out here."""

_PODMAN_HPC = "gpu nccl mpich openmpi-pmi2 openmpi-pmix cuda-mpich cvmfs home scratch cfs jupyter".split()
"""etc/modules.d of podman-hpc (01b02d6)."""

OPTIONS: dict[str, frozenset[str]] = {
    "apptainer": frozenset(_BOTH),
    "singularity": frozenset(_BOTH),
    "podman-hpc": frozenset([*_PODMAN_RUN, *_PODMAN_HPC]),
    # bin/ch-run.c of Charliecloud 0.39 (23de6eee).
    "charliecloud": frozenset(
        "bind cd env-no-expand feature gid home join join-pid join-ct join-tag test mount no-passwd private-tmp quiet "
        "seccomp set-env set-env0 storage uid unsafe unset-env verbose version warnings write write-fake".split()
    ),
    # src/shifter.c of Shifter (84b7d34).
    "shifter": frozenset("help volume verbose image entry entrypoint workdir module env env-file clearenv".split()),
    # args.c of Pyxis 0.24 (1075199).
    "pyxis": frozenset(
        "container-image container-mounts container-workdir container-name container-save container-mount-home "
        "no-container-mount-home container-remap-root no-container-remap-root container-entrypoint "
        "no-container-entrypoint container-entrypoint-log container-writable container-readonly container-env "
        "container-unshare".split()
    ),
    # CSCS's documentation of the Container Engine.
    "edf": frozenset({"environment"}),
}
