"""What a package imports that adds a launcher, a container runtime or a scheduler (docs/how-to/plugins.md)."""

from hpc_launch.base.errors import NoContact, NotNow, NotWritten, SubmitRefused, SubmitUnknown, Unreachable
from hpc_launch.base.files import state_folder
from hpc_launch.plan.launchers.descriptor import LauncherDescriptor, LauncherPlan, options_only
from hpc_launch.plugins.entry_points import API
from hpc_launch.runtimes.container_runtimes import CommandWrapper, ContainerPlan, RuntimeDescriptor
from hpc_launch.schedulers.scheduler import JobRecord, Limit, QueueLimits, Scheduler, SchedulerDescriptor, Submission

__all__ = ["API", "CommandWrapper", "ContainerPlan", "JobRecord", "LauncherDescriptor", "LauncherPlan", "Limit"]
__all__ += ["NoContact", "NotNow", "NotWritten", "QueueLimits", "RuntimeDescriptor", "Scheduler", "SchedulerDescriptor"]
__all__ += ["Submission", "SubmitRefused", "SubmitUnknown", "Unreachable", "options_only", "state_folder"]
