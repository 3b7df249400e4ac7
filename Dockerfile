# Three images from one wheel:
#   docker build --target api .      control plane: API, rescuer, migrations, CLI; without torch
#   docker build --target worker .   a stage's worker, with vLLM's CUDA build and the extra pictures; compose.cpu.yml has
#                                    the arguments for vLLM's build for CPUs
#   docker build --target worker-cpu .   a worker of stages that need no GPU: the extras voice and upscale; without torch
# All packages come from a lock. Their layer stays cached when only the code changes.
# The locks are made for Debian 12's glibc and Python 3.11 or 3.12: --build-arg PYTHON_IMAGE=python:3.12-slim-bookworm
# To pin the base image by digest, pull it and set PYTHON_IMAGE=python@sha256:…
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm
# Or cpu-torch-packages, as compose.cpu.yml has it.
ARG WORKER_PACKAGES=cuda-packages

FROM ${PYTHON_IMAGE} AS base
LABEL org.opencontainers.image.title="omni-jobs" \
    org.opencontainers.image.description="Asynchronous generation jobs on multi-stage omni-modal models" \
    org.opencontainers.image.version="0.1.0" \
    org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/omni-jobs/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    DO_NOT_TRACK=1 \
    HF_HUB_OFFLINE=1 \
    VLLM_NO_USAGE_STATS=1
RUN groupadd --gid 10001 omni \
    && useradd --uid 10001 --gid omni --create-home omni \
    && install -d -o omni -g omni /home/omni/.cache /home/omni/load-locks
WORKDIR /home/omni

FROM base AS builder
# Every file has to have a hash of the locks. For another index than PyPI, with the same files:
# --build-arg PIP_INDEX_URL=… --build-arg UV_DEFAULT_INDEX=…
ARG PIP_INDEX_URL
ARG UV_DEFAULT_INDEX
COPY scripts/installers.txt /
RUN pip install --no-cache-dir --no-deps --require-hashes --requirement /installers.txt \
    && uv venv --python /usr/local/bin/python /opt/omni-jobs
ENV UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 UV_PYTHON=/opt/omni-jobs/bin/python

FROM builder AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY omni_jobs omni_jobs
COPY workers workers
COPY stage_configs stage_configs
COPY migrations migrations
RUN --mount=type=cache,target=/root/.cache/uv uv build --wheel --out-dir /dist

# With the packages that carry checkpoints, because the API checks requests by a checkpoint's files.
FROM builder AS core-packages
COPY locks/core.txt /locks/
RUN --mount=type=cache,target=/root/.cache/uv uv pip sync --require-hashes /locks/core.txt

FROM builder AS cuda-packages
COPY locks/worker-cuda.txt /locks/
RUN --mount=type=cache,target=/root/.cache/uv uv pip sync --require-hashes /locks/worker-cuda.txt

# Wheels that no index has, by --build-context wheels=DIRECTORY: none.
FROM scratch AS wheels
WORKDIR /none

# Each index of PyTorch's builds for CPUs (--build-arg UV_INDEX=…) has other bytes of one version, so the lock has no
# hashes. Beside such a torch the torchvision of another index has to be mended.
FROM builder AS cpu-torch-packages
ARG UV_INDEX
COPY locks/worker-cpu-torch.txt /locks/
RUN --mount=type=cache,target=/root/.cache/uv --mount=type=bind,from=wheels,target=/wheels \
    UV_INDEX_STRATEGY=unsafe-best-match UV_FIND_LINKS=/wheels uv pip sync /locks/worker-cpu-torch.txt
COPY scripts/install.py /scripts/
RUN PYTHONPATH=/scripts python -c "import install; install.mend_torchvision('/opt/omni-jobs')"

FROM builder AS cpu-packages
COPY locks/worker-cpu.txt /locks/
RUN --mount=type=cache,target=/root/.cache/uv uv pip sync --require-hashes /locks/worker-cpu.txt

FROM base AS api
COPY --from=core-packages /opt/omni-jobs /opt/omni-jobs
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    --mount=type=bind,from=builder,source=/usr/local/bin/uv,target=/usr/local/bin/uv \
    uv pip install --no-cache --compile-bytecode --no-deps --no-index --python /opt/omni-jobs/bin/python /dist/*.whl
USER 10001:10001
ENV OMNI_JOBS_API_HOST=0.0.0.0 OMNI_JOBS_API_PORT=8000
EXPOSE 8000
CMD ["omni-jobs", "api"]

FROM base AS worker-cpu
COPY --from=cpu-packages /opt/omni-jobs /opt/omni-jobs
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    --mount=type=bind,from=builder,source=/usr/local/bin/uv,target=/usr/local/bin/uv \
    uv pip install --no-cache --compile-bytecode --no-deps --no-index --python /opt/omni-jobs/bin/python /dist/*.whl
USER 10001:10001
ENV CELERY_CUSTOM_WORKER_POOL=workers.consumer.pool:StagePool
CMD ["omni-jobs", "worker", "--help"]

FROM ${WORKER_PACKAGES} AS worker-packages

FROM base AS worker
# When an engine starts, Triton compiles launchers with gcc; vLLM on CPUs loads libnuma. A Debian release has only one
# version of each to pin.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc g++ libc6-dev libnuma1 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=worker-packages /opt/omni-jobs /opt/omni-jobs
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    --mount=type=bind,from=builder,source=/usr/local/bin/uv,target=/usr/local/bin/uv \
    uv pip install --no-cache --compile-bytecode --no-deps --no-index --python /opt/omni-jobs/bin/python /dist/*.whl
USER 10001:10001
# The container needs these capabilities of the driver. torch is built for CUDA 13.0, which drivers from 580 on support:
# with an older one the container does not start in the toolkit's legacy mode; in CDI mode, which does not look at
# NVIDIA_REQUIRE_CUDA, the worker ends with an error. All compiled code goes below one directory, for a volume.
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_REQUIRE_CUDA="cuda>=13.0" \
    CELERY_CUSTOM_WORKER_POOL=workers.consumer.pool:StagePool \
    TRITON_CACHE_DIR=/home/omni/.cache/triton \
    TORCHINDUCTOR_CACHE_DIR=/home/omni/.cache/torchinductor \
    CUDA_CACHE_PATH=/home/omni/.cache/nv
CMD ["omni-jobs", "worker", "--help"]
