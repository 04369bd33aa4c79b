# Turnqueue's processes: one image, the command says which. Your own tools: `FROM turnqueue:0.1.0`, install them into
# /opt/turnqueue, and name their modules in TURNQUEUE_MODULES.

FROM python:3.11-slim-bookworm AS build
RUN pip install --no-cache-dir uv==0.13.9
WORKDIR /src
ENV UV_PROJECT_ENVIRONMENT=/opt/turnqueue UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1
# The dependencies change seldom: a layer of their own. `tool.uv.constraint-dependencies` pins the whole tree.
COPY pyproject.toml README.md LICENSE ./
RUN uv sync --no-dev --extra flower --no-install-project
COPY celeryconfig.py ./
COPY orchestrator ./orchestrator
COPY executors ./executors
COPY adapters ./adapters
COPY policy ./policy
COPY store ./store
COPY embedded ./embedded
COPY examples ./examples
RUN uv sync --no-dev --extra flower --no-editable

FROM python:3.11-slim-bookworm
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin turnqueue
COPY --from=build /opt/turnqueue /opt/turnqueue
ENV PATH=/opt/turnqueue/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /tmp
USER 10001
STOPSIGNAL SIGTERM
# Exec form: Celery is process 1 and gets the signal.
CMD ["celery", "-A", "orchestrator.tasks", "worker", "-Q", "orchestrator,submit", "-P", "threads", "-c", "16", "-n", "orchestrator@%h", "-l", "INFO", "--without-gossip", "--without-mingle"]
