"""Celery settings, queues and routes; no logic. The reasons are in docs/celery.md."""

from kombu.transport import TRANSPORT_ALIASES

from orchestrator.hints import CORE_QUEUES, SUBMIT_QUEUE, queue, transport_options
from orchestrator.settings import Settings

_settings = Settings.from_env()

TRANSPORT_ALIASES |= dict.fromkeys(("redis", "rediss"), "orchestrator.transport:Transport")
TRANSPORT_ALIASES |= {"amqp": "orchestrator.transport:AmqpTransport", "amqps": "orchestrator.transport:AmqpsTransport"}

broker_url = _settings.broker_url
broker_transport_options = transport_options(_settings)
broker_connection_retry_on_startup = True
broker_connection_max_retries = None  # survive long outages
broker_channel_error_retry = True
broker_pool_acquire_timeout = 5
broker_heartbeat = 30  # seconds (RabbitMQ): a connection that is dead at the other end is noticed within two of them

# No result backend, no chords: PostgreSQL is the only truth.
result_backend = None
task_ignore_result = True
task_store_errors_even_if_ignored = False

task_serializer = "json"
accept_content = ["json"]
task_acks_late = True  # a hint taken twice is refused by the claim
task_reject_on_worker_lost = False
task_retry_on_worker_lost = False
task_acks_on_failure = True
task_acks_on_timeout = True
task_publish_retry_policy = {"max_retries": 1, "interval_start": 0, "interval_step": 0.2, "interval_max": 0.2}
task_create_missing_queues = False  # a typo must fail, not make a queue that nobody reads
task_queues = [queue(name) for name in CORE_QUEUES]
task_default_queue = "orchestrator"
task_default_exchange = ""
task_routes = {"turnqueue.submit": {"queue": SUBMIT_QUEUE}, "turnqueue.advance": {"queue": "orchestrator"}}
task_repr_maxlevels = 1

worker_consumer = "orchestrator.tasks:Consumer"
worker_prefetch_multiplier = 1
worker_cancel_long_running_tasks_on_connection_loss = False  # threads cannot be stopped
worker_hijack_root_logger = False
worker_redirect_stdouts = False
worker_send_task_events = _settings.send_events
task_send_sent_event = _settings.send_events
worker_enable_remote_control = _settings.send_events  # Flower needs it; without it the broker cannot command workers
enable_utc = True
