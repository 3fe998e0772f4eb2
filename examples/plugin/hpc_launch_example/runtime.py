"""`container: {runtime: proot}`: an unpacked image, entered without any rights (proot(1))."""

from hpc_launch.plugins.api import API, CommandWrapper, ContainerPlan, RuntimeDescriptor


def _wrap(plan: ContainerPlan) -> CommandWrapper:
    binds = ((("-b",), bind) for bind in plan.binds)
    options = ((("-w",), (plan.workdir,)), *binds, *(((option,),) for option in plan.options))
    return CommandWrapper(before=((("proot",), ("-r",), (plan.image,)), *options))


DESCRIPTOR = RuntimeDescriptor(name="proot", api=API, wrap=_wrap, files=True)
