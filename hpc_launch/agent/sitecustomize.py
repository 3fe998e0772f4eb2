"""Tell the watcher of the node how far this Python process has come in the start of the training.

hpc-launch puts this file on the PYTHONPATH of a job; Python's `site` imports it when an interpreter starts. It runs
the sitecustomize of the site or the virtual environment, and does no more outside a watched job. It never raises, and
writes at most a few short lines to a pipe, HPC_LAUNCH_PHASE_PIPE, which the watcher reads.

Ranks report python (Python started), torch (imported), init (init_process_group began), store (connected to the store),
group (init_process_group ended), collective (the first one began) and done (it ended). torchrun reports launcher
(Python started), rendezvous (its own began), joined (connected to the store) and met (its own ended). Ranks also report
raised (an exception ends the program), and rank 0 saved (its main thread saved a checkpoint for so many milliseconds).

It also makes rank 0 alone continue the run of a tracker, to which no other rank must write, and shows stacks when it is
asked. It runs in every process of a job, with Python 3.6 or later, and imports nothing that Python has not loaded.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

COLLECTIVES = """all_gather all_gather_into_tensor all_gather_object all_reduce all_to_all all_to_all_single barrier
broadcast broadcast_object_list gather gather_object monitored_barrier reduce reduce_scatter reduce_scatter_tensor
scatter _broadcast_coalesced _verify_params_across_processes""".split()
"""Functions of `torch.distributed`; the last two are what DDP calls."""

SAVERS = {
    "torch.serialization": ["save"],
    "torch.distributed.checkpoint.state_dict_saver": ["save", "save_state_dict", "async_save"],
    "safetensors.torch": ["save_file", "save_model"],
}
"""Functions that write a checkpoint, by the module that defines them."""
SAVING_S = 0.05  # what takes less time is not worth a report: some programs save many small things


def run_next() -> None:
    """Run the sitecustomize that this file hides, if there is one."""
    here = os.path.dirname(os.path.realpath(__file__))
    others = [path for path in sys.path if os.path.realpath(path) != here]
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = find("sitecustomize", others) if find is not None else None
        if spec is not None and spec.loader is not None:
            from importlib.util import module_from_spec

            module = sys.modules["sitecustomize"] = module_from_spec(spec)
            spec.loader.exec_module(module)
            return


class Pipe:
    """Sends marks to the watcher. What it cannot take now is sent with the next import."""

    def __init__(self, path: str, rank: str) -> None:
        self.path, self.rank = path, rank
        self.mark, self.unsent = "", b""

    def tell(self, mark: str) -> None:
        self.mark = mark
        self.send("%s %s\n" % (mark, self.rank))

    def send(self, line: str = "") -> None:
        self.unsent += line.encode("ascii")
        try:
            pipe = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(pipe, self.unsent)  # all or nothing, as it is shorter than PIPE_BUF
                self.unsent = b""
            finally:
                os.close(pipe)
        except OSError:
            self.unsent = self.unsent[-256:]

    def raised(self, before: "Any", *error: "Any") -> None:
        from time import time

        safely(self.send, "raised %s %d\n" % (self.rank, time() * 1000))
        before(*error)


class Loader:
    """Calls `after(module)` when a module was imported, and leaves the module with its own loader."""

    def __init__(self, loader: "Any", after: "Any") -> None:
        self.loader, self.after = loader, after

    def __getattr__(self, name: str) -> "Any":
        return getattr(self.loader, name)

    def exec_module(self, module: "Any") -> None:
        module.__loader__ = module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        safely(self.after, module)


class Finder:
    """Finds the modules in `after` as the other finders do, and adds what to do after their import."""

    def __init__(self, pipe: Pipe, after: "Dict[str, Any]") -> None:
        self.pipe, self.after = pipe, after

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if self.pipe.unsent:
            self.pipe.send()
        if name not in self.after:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None) if finder is not self else None
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = Loader(spec.loader, self.after[name])
                return spec
        return None


def safely(function: "Any", *args: object) -> None:
    """Call a function. What fails in it is not reported, such as with a PyTorch that is built differently."""
    try:
        function(*args)
    except Exception:
        pass


def around(owner: "Any", name: str, before: "Any", after: "Any", once: str = "") -> None:
    """Call `before(*args)` and `after()` around a function of a module or class. `once`: then put the function back,
    also into the package of this name."""
    from functools import wraps

    function = getattr(owner, name)

    @wraps(function)
    def told(*args: "Any", **kwargs: "Any") -> "Any":
        safely(before, *args)
        result = function(*args, **kwargs)
        safely(after)
        for place in (owner, sys.modules.get(once)) if once else ():
            if getattr(place, name, None) is told:
                setattr(place, name, function)
        return result

    setattr(owner, name, told)


def of_rank(pipe: Pipe) -> "Dict[str, Any]":
    """What to do after which import in a training process."""

    def init(module: "Any") -> None:
        def ended() -> None:
            pipe.tell("group")
            first_collective(pipe, sys.modules["torch.distributed"])

        around(module, "init_process_group", lambda *_: pipe.tell("init"), ended, once="torch.distributed")

    def store(module: "Any") -> None:
        def begun(*args: object) -> None:
            # Rank 0 hosts the store, and waits in it for all others. (host, port, rank, …)
            if args[2:3] == (0,) and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
                pipe.tell("store")

        around(module, "_create_c10d_store", begun, lambda: pipe.tell("store"), once="torch.distributed")

    after = {
        "torch": lambda _: pipe.tell("torch"),
        "torch.distributed.distributed_c10d": init,
        "torch.distributed.rendezvous": store,
    }  # type: Dict[str, Any]
    if pipe.rank == "0":
        saving = Saving(pipe)
        for name, functions in SAVERS.items():
            after[name] = saving.of(functions)
    return after


class Saving:
    """Reports for how long the main thread was in a function that saves. What other threads save holds nothing up."""

    def __init__(self, pipe: Pipe) -> None:
        self.pipe, self.inside = pipe, False

    def of(self, names: "Any") -> "Any":  # what to do after the import of a module with these functions
        def wrap(module: "Any") -> None:
            for name in names:
                if hasattr(module, name):
                    setattr(module, name, self.timed(getattr(module, name)))

        return wrap

    def timed(self, function: "Any") -> "Any":
        from functools import wraps
        from threading import current_thread, main_thread
        from time import time

        @wraps(function)
        def save(*args: "Any", **kwargs: "Any") -> "Any":
            if self.inside or current_thread() is not main_thread():
                return function(*args, **kwargs)
            self.inside, began = True, time()
            try:
                return function(*args, **kwargs)
            finally:
                self.inside = False
                if time() - began >= SAVING_S:
                    self.pipe.send("saved %s %d\n" % (self.pipe.rank, (time() - began) * 1000))

        return save


def first_collective(pipe: Pipe, package: "Any") -> None:
    """Report the first collective that is called as `torch.distributed.NAME`, and put all functions back before it."""
    from functools import wraps

    compiling = sys.modules["torch"].compiler.is_compiling  # since 2.1; without it nothing is reported
    functions = {name: getattr(package, name) for name in COLLECTIVES if hasattr(package, name)}

    def reporting(function: "Any") -> "Any":
        @wraps(function)
        def told(*args: "Any", **kwargs: "Any") -> "Any":
            if compiling():  # true for torch.compile, which then sees only the function itself
                return function(*args, **kwargs)
            first = pipe.mark == "group"
            for name, original in functions.items():
                if getattr(package, name) is reports[name]:
                    setattr(package, name, original)
            if first:
                pipe.tell("collective")
            result = function(*args, **kwargs)
            if first:
                pipe.tell("done")
            return result

        return told

    reports = {name: reporting(function) for name, function in functions.items()}
    for name, report in reports.items():
        setattr(package, name, report)


def of_launcher(pipe: Pipe) -> "Dict[str, Any]":
    """What to do after which import in torchrun."""

    def agent(module: "Any") -> None:
        # The c10d rendezvous connects before, and stays connected when it is repeated.
        around(
            module.SimpleElasticAgent,
            "_rendezvous",
            lambda *_: pipe.tell("rendezvous" if pipe.mark == "launcher" else "joined"),
            lambda: pipe.tell("met"),
        )

    def static(module: "Any") -> None:
        def begun(handler: "Any", *_: object) -> None:
            pipe.tell("joined" if handler.rank == 0 else "rendezvous")  # node 0 hosts the store, and waits in it

        around(module.StaticTCPRendezvous, "next_rendezvous", begun, lambda: pipe.tell("joined"))

    def c10d(module: "Any") -> None:
        around(module, "create_backend", lambda *_: pipe.tell("rendezvous"), lambda: pipe.tell("joined"))

    return {
        "torch.distributed.elastic.agent.server.api": agent,
        "torch.distributed.elastic.rendezvous.static_tcp_rendezvous": static,
        "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend": c10d,
    }


def one_mlflow_run(path: str) -> "Any":
    """Make the first `mlflow.start_run` continue the run whose id the file holds, or keep the id of a new one there."""

    def known() -> str:
        try:
            with open(path) as file:
                text = file.read(100).strip()
            return text if text.replace("-", "").replace("_", "").isalnum() else ""
        except OSError:
            return ""

    def keep(run: "Any") -> None:  # MLflow accepts only the id of a run that exists
        with open(path + ".new", "w") as file:
            file.write(run.info.run_id + "\n")
        os.rename(path + ".new", path)

    def wrap(module: "Any") -> None:
        from functools import wraps

        function = module.start_run

        @wraps(function)
        def start_run(*args: "Any", **kwargs: "Any") -> "Any":
            for place in (module, sys.modules.get("mlflow")):
                if getattr(place, "start_run", None) is start_run:
                    place.start_run = function  # type: ignore[union-attr]
            if args or kwargs.get("run_id") or kwargs.get("nested") or os.environ.get("MLFLOW_RUN_ID"):
                return function(*args, **kwargs)
            kwargs.pop("run_id", None)
            run_id = known()
            try:
                if run_id:
                    return function(run_id, **kwargs)
            except Exception as error:
                sys.stderr.write("[hpc-launch] cannot continue MLflow run %s: %s\n" % (run_id, error))
            run = function(**kwargs)
            safely(keep, run)
            return run

        module.start_run = start_run

    return wrap


def choose_tracker_run(rank: str) -> None:
    """Leave the id of the W&B run to rank 0, unless the user chose it."""
    own = os.path.basename(os.environ.get("HPC_LAUNCH_RUN_DIR", ""))
    if rank not in ("", "0") and own and os.environ.get("WANDB_RUN_ID") == own:
        del os.environ["WANDB_RUN_ID"]
        os.environ.pop("WANDB_RESUME", None)


def report() -> None:
    """Report that Python started, and arrange for the rest."""
    rank, path = os.environ.get("RANK", ""), os.environ.get("HPC_LAUNCH_PHASE_PIPE", "")
    pipe = Pipe(path, rank if rank.isdigit() else "-")
    after = {}  # type: Dict[str, Any]
    choose_tracker_run(rank)
    if path and pipe.rank == "-":
        pipe.tell("launcher")
        after = of_launcher(pipe)
    elif path:
        del os.environ["HPC_LAUNCH_PHASE_PIPE"]  # the children of a rank, such as data loaders, do not report
        pipe.tell("python")
        before, sys.excepthook = sys.excepthook, lambda *error: pipe.raised(before, *error)
        after = of_rank(pipe)
    mlflow = os.environ.pop("HPC_LAUNCH_MLFLOW_RUN", "") if rank else ""
    if mlflow and rank == "0":
        after["mlflow.tracking.fluent"] = one_mlflow_run(mlflow)
    if after:
        sys.meta_path.insert(0, Finder(pipe, after))
    import _signal  # type: ignore[import-not-found]
    import faulthandler

    # At SIGURG, which nothing else sends, to a file in memory, which tells agent/enter.py that it may ask (Python 3.8).
    faulthandler.register(_signal.SIGURG, os.memfd_create("hpc-launch-stacks"))


try:
    run_next()
finally:
    if os.environ.get("HPC_LAUNCH_RUN_DIR", os.environ.get("HPC_LAUNCH_PHASE_PIPE")) and sys.version_info >= (3, 6):
        safely(report)
