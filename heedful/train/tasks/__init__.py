"""Training tasks, each prepared by a module of its own; see `heedful.train.task.prepare_task`."""
