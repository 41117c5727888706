"""The application of a worker process, with its models and threads."""

from __future__ import annotations

import torch
from starlette.applications import Starlette

from heedful.apps.serve.application import build_app
from heedful.apps.serve.metrics import Metrics
from heedful.apps.serve.scheduler import Scheduler
from heedful.apps.serve.served_models import ServedModels, parse_model
from heedful.apps.serve.server_parts import ServerParts
from heedful.apps.serve.server_settings import ServerSettings
from heedful.apps.serve.service import Service
from heedful.device import usable_cores
from heedful.memory import trim

MOST_THREADS = 4
"""Maximum number of batches computed at a time; each needs separate memory."""


def build_worker(settings: ServerSettings) -> Starlette:
    """Load models and build the application.

    Args:
        settings: settings of the server.

    Raises:
        UserError: when a model or a file cannot be used.
    """
    metrics = Metrics()
    models = ServedModels(map(parse_model, settings.models), settings, metrics.observe_prompt)
    models.load_all()
    cores = max(1, usable_cores() // settings.workers)
    threads = min(MOST_THREADS, cores)
    # Several batches at a time use cores better than one batch on all of them.
    scheduler = Scheduler(
        threads=threads,
        positions=settings.positions,
        most_waiting=settings.most_waiting,
        begin_thread=lambda: torch.set_num_threads(max(1, cores // threads)),
        observe=metrics.observe,
        rest=trim,
    )
    metrics.watch(lambda: scheduler.waiting, lambda: scheduler.computing)
    service = Service(models, scheduler, settings.limits, settings.search)
    return build_app(ServerParts.open(settings, service, metrics))
