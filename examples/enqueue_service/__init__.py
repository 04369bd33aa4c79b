"""Another service that enqueues operations: a ticket desk with a Celery app of its own. See README.md."""
