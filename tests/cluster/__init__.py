"""A real multi-node Slurm cluster on one machine, inside private namespaces.

    with Cluster.start(nodes=4, gpus_per_node=4, accounting=True) as cluster:
        cluster.run(["sbatch", "job.sh"], cwd=cluster.home)

Who is who, from the outside in:

* ``cluster.py`` is the API that a test holds; ``enter.py`` takes a command into the namespaces.
* ``supervisor.py`` runs outside, watches the owner of the cluster, and ends everything with it.
* ``manager.py`` is process 1 of the cluster's pid namespace: it keeps the daemons and the nodes.
* ``node.py`` is process 1 of one node; killing it is the death of that node.

``Cluster.start(system="trixie")`` runs the same inside another Debian, with a newer Slurm:
``roots.py`` makes its root file system, ``mounts.py`` moves the namespaces into it, ``image.py``
makes an image for the Apptainer of ``sid``.

Nothing of the machine changes: files live in one temporary folder, mounts and network
interfaces only in namespaces that vanish with their last process.
"""

TYPE_CHECKING = False
"""As in `typing`, whose import takes longer than all else here."""
if TYPE_CHECKING:
    from tests.cluster.cluster import Cluster
    from tests.cluster.settings import ClusterError, ClusterUnavailable, Settings

__all__ = ["Cluster", "ClusterError", "ClusterUnavailable", "Settings"]


def __getattr__(name: str) -> object:
    """Import them when they are asked for: `enter.py`, which starts for each command, needs none of them."""
    if name not in __all__:
        raise AttributeError(name)
    from importlib import import_module

    return getattr(import_module(f"tests.cluster.{'cluster' if name == 'Cluster' else 'settings'}"), name)
