"""A small image for Apptainer, made of the cluster's own system: nothing is pulled.

It holds a shell, the usual tools and the libraries of a Python, but no Python: this one, with its
environment and the checkout, is bound in by each test.
"""

from __future__ import annotations

from pathlib import Path

from tests.cluster.commands import Commands
from tests.cluster.settings import ClusterError, ClusterUnavailable

PROGRAMS = (
    "bash sh env cat ls cp mv rm mkdir rmdir ln touch chmod echo printf test true false sleep date id whoami hostname "
    "uname nproc pwd dirname basename readlink realpath stat head tail sort uniq wc tr cut tee seq grep sed awk find "
    "xargs timeout kill ps ip"
)

# The libraries that a Python loads are named: it is not there to be asked.
LIBRARIES = (
    "libbz2.so.1.0 libcrypto.so.3 libdl.so.2 libexpat.so.1 libffi.so.8 libgcc_s.so.1 liblzma.so.5 libm.so.6 "
    "libncursesw.so.6 libpanelw.so.6 libpthread.so.0 libreadline.so.8 librt.so.1 libsqlite3.so.0 libssl.so.3 "
    "libstdc++.so.6 libutil.so.1 libuuid.so.1 libz.so.1"
)

RECIPE = r"""
set -eu
box=$1; image=$2; shift 2
mkdir -p "$box/etc" "$box/usr/bin" "$box/usr/sbin" "$box/usr/lib" "$box/usr/lib64"
mkdir -p "$box/.singularity.d"  # `run` starts the words that follow, as in an image made of Docker's
printf '#!/bin/sh\nexec "$@"\n' >"$box/.singularity.d/runscript"
chmod +x "$box/.singularity.d/runscript"
mkdir -p "$box/proc" "$box/sys" "$box/dev" "$box/tmp" "$box/var/tmp" "$box/root" "$box/home"
for name in bin sbin lib lib64; do ln -s "usr/$name" "$box/$name"; done
folder=$(dirname "$(ldconfig -p | awk '/libc\.so\.6 /{print $NF; exit}')")
{
    for name in $PROGRAMS; do
        program=$(which "$name") || continue
        program=$(realpath "$(dirname "$program")")/$(basename "$program")
        echo "$program"
        ldd "$(realpath "$program")" 2>/dev/null | grep -o '/[^ ]*' || true
    done
    for name in $LIBRARIES; do
        [ ! -e "$folder/$name" ] || { echo "$folder/$name"; ldd "$folder/$name" | grep -o '/[^ ]*' || true; }
    done
} | sort -u | while read -r file; do
    mkdir -p "$box$(dirname "$file")"
    [ -e "$box$file" ] || cp -L "$file" "$box$file"
done
cp /etc/passwd /etc/group /etc/hosts /etc/nsswitch.conf "$box/etc/"
apptainer build --force --mksquashfs-args="-noD -noF" "$image" "$box"  # compressing takes longer than all the rest
"""


def build_sif(cluster: Commands, path: Path) -> Path:
    """Build the image at `path` as the ordinary user, on the login node; takes some seconds.

    Raises:
        ClusterUnavailable: There is no Apptainer in the cluster's system, or no FUSE on this machine.
    """
    if cluster.run(["sh", "-c", "command -v apptainer"]).returncode != 0:
        raise ClusterUnavailable(f"there is no Apptainer in {cluster.settings.system or 'this system'}")
    if not cluster.layout.fuse.exists():
        raise ClusterUnavailable("images need /dev/fuse, which this machine does not have")
    box = cluster.user_folder("image-")
    draft = box / "image.sif"
    done = cluster.run(
        ["sh", "-c", RECIPE, "build", str(box / "root"), str(draft)],
        env={"PROGRAMS": PROGRAMS, "LIBRARIES": LIBRARIES},
        timeout=120,
    )
    if done.returncode != 0:
        raise ClusterError(f"apptainer build failed\n{done.stdout}{done.stderr}")
    draft.rename(path)  # in one step: others may look whether it is there
    cluster.run(["rm", "-rf", str(box)])
    return path
