#!/usr/bin/env bash
# Install Slurm and what else the cluster tests start for real, where that is possible; say so where it is not.
#
# Those tests run a whole Slurm of their own in a sandbox. Without these packages they are skipped and every
# other test runs, so this script never fails: it explains. SYSTEM_PACKAGES=no keeps it from installing.
set -euo pipefail

wanted=(slurmctld slurmd slurmdbd slurm-client munge mariadb-server iproute2 debootstrap
    openssh-server openssh-client rsync pdsh nftables openmpi-bin mpich squashfs-tools squashfuse fuse3)

skip() {
    echo "Not installing system packages: $1."
    echo "  The tests marked 'cluster', which start a Slurm of their own, will be skipped. They need the Debian"
    echo "  packages ${wanted[*]}, and root."
    exit 0
}

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    skip "this machine has no apt-get"
fi

missing=()
for package in "${wanted[@]}"; do
    if [[ $(dpkg-query -W -f '${Status}' "$package" 2>/dev/null) != "install ok installed" ]]; then
        missing+=("$package")
    fi
done
if ((${#missing[@]} == 0)); then
    exit 0
fi
if [[ ${SYSTEM_PACKAGES:-yes} == no ]]; then
    skip "SYSTEM_PACKAGES=no"
fi

as_root=()
if ((EUID != 0)); then
    sudo -n true 2>/dev/null || skip "that needs root, and sudo asks for a password"
    as_root=(sudo -n)
fi

# The packages would start their services, with settings that nobody chose. A policy that says no is the way
# Debian has for installing a service without starting it. A policy that is there already is left alone.
policy=/usr/sbin/policy-rc.d
log=$(mktemp)
made_policy=no
clean_up() {
    if [[ $made_policy == yes ]]; then
        "${as_root[@]}" rm -f "$policy"
    fi
    rm -f "$log"
}
trap clean_up EXIT
if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
    made_policy=yes
    "${as_root[@]}" chmod 755 "$policy"
fi

started=$SECONDS
printf 'Installing Debian packages (can take minutes): %s ... ' "${missing[*]}"
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300)
if ! { "${apt[@]}" update && "${apt[@]}" install --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 </dev/null; then
    echo "failed"
    tail -n 10 "$log"
    skip "apt-get failed"
fi
echo "done in $((SECONDS - started)) s"
