"""Tasks of training from outside the package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from heedful.train.task import Setup, Task
from heedful.train.task_rules import Task as TaskName


@dataclass(frozen=True)
class RegisteredTask:
    """A task from outside the package, for `heedful.register`.

    Args:
        name: name in settings.
        like: task of the package whose rules it has: kind of model, defaults, settings, metrics.
        prepare: function that reads, checks and encodes the data. Most call that of `like`, a
            module of `heedful.train.tasks`, and exchange parts of its result, such as the loss.
    """

    family: ClassVar[str] = "task"
    name: str
    like: TaskName
    prepare: Callable[[Setup], Task]

    def known_as(self) -> str:
        """Return its name in settings."""
        return self.name
