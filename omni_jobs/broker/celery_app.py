"""``OmniCelery``: the Celery app of a worker, with its settings and one queue for every stage of every pipeline."""

from typing import Any

from celery import Celery
from kombu.entity import Queue

from omni_jobs.broker.broker import Broker
from omni_jobs.broker.connection import CONNECTION_OPTIONS, broker_url
from omni_jobs.pipelines.loader import Pipelines
from omni_jobs.settings import Settings


class OmniCelery(Celery):  # type: ignore[misc]  # celery has no types
    """The Celery app of a worker process. It carries the settings, the pipelines and a Broker that rings doorbells."""

    def __init__(self, settings: Settings, pipelines: Pipelines) -> None:
        """Configure one queue for every stage of every pipeline. The app connects to nothing yet.

        ``-Q NAME.STAGE`` selects the queue of the newest version, because that is the queue's alias.

        Raises ConfigError for a file in the broker's URL that cannot be used.
        """
        super().__init__("omni_jobs", set_as_current=False)
        self.settings = settings
        self.pipelines = pipelines
        self.broker = Broker(settings, pipelines)
        aliases = {queue: alias for alias, queue in pipelines.queue_aliases.items()}
        self.conf.update(
            broker_url=broker_url(settings),
            broker_transport_options={
                **CONNECTION_OPTIONS,
                "ack_emulation": False,  # no message is acknowledged, because a lost doorbell costs a poll
                "priority_steps": [0],  # one list per queue
                "global_keyprefix": settings.broker_key_prefix,
            },
            broker_connection_timeout=CONNECTION_OPTIONS["socket_connect_timeout"],
            broker_connection_retry_on_startup=True,
            broker_connection_max_retries=None,
            result_backend=None,
            task_ignore_result=True,
            task_serializer="json",
            accept_content=["json"],
            task_queues=[
                Queue(name, alias=aliases.get(name), routing_key=name, no_ack=True)  # type: ignore[no-untyped-call]
                for pipeline in pipelines.values()
                for name in map(pipeline.queue, pipeline.stages)
            ],
            task_create_missing_queues=False,
            worker_prefetch_multiplier=1,
            worker_disable_prefetch=True,
            worker_send_task_events=False,
            worker_enable_prefetch_count_reduction=False,
            worker_cancel_long_running_tasks_on_connection_loss=True,  # Celery itself runs no tasks
            worker_soft_shutdown_timeout=settings.drain_s,
            worker_redirect_stdouts=False,  # engines need the real file descriptors
        )

    def __reduce__(self) -> Any:
        raise TypeError("a Celery app with its settings stays in its process")
