# ./build_and_push.sh NAME builds, tests and pushes this image.
#   docker run --gpus all -v "$PWD:/workspace" NAME run_multigpu.sh
ARG BASE_IMAGE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

# Torch and CUDA of the lock in three parts of similar size. Each becomes a layer, and layers are pulled in parallel.
FROM $BASE_IMAGE AS locks
ARG TORCH_INDEX_URL
ARG TORCH_VERSION
WORKDIR /locks
COPY requirements.lock ./
RUN touch 1.lock 2.lock 3.lock && \
    if [ -z "$TORCH_INDEX_URL$TORCH_VERSION" ]; then \
        awk '/^[a-z]/ { part = /^nvidia-cu[bd]/ ? 1 : /^nvidia-/ ? 2 : /^(torch==|triton==|cuda-)/ ? 3 : 4 } \
             { print > part ".lock" }' requirements.lock; fi

FROM $BASE_IMAGE
# Any version of tini is good enough.
# hadolint ignore=DL3008
RUN if ! command -v tini; then apt-get update && apt-get install -y --no-install-recommends tini; fi && \
    rm -rf /var/lib/apt/lists/* && \
    useradd --uid 1000 --user-group --no-create-home --home-dir /nonexistent gnn

ENV PATH=/opt/venv/bin:/opt/gnn:/opt/gnn/scripts:$PATH \
    PYTHONPATH=/opt/gnn \
    PYTHONSAFEPATH=1 \
    GNN_VENV=/opt/venv \
    GNN_WORKSPACE=/workspace \
    ORT_DISABLE_TELEMETRY=1 \
    NUMBA_CACHE_DIR=/tmp/numba \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

# The secret `ca` is a bundle of certificates, for a network where a private authority signs the package index.
RUN --mount=type=bind,source=scripts/install_image.sh,target=/install_image.sh --mount=type=secret,id=ca \
    --mount=type=bind,from=locks,source=/locks/1.lock,target=/1.lock /install_image.sh /1.lock
RUN --mount=type=bind,source=scripts/install_image.sh,target=/install_image.sh --mount=type=secret,id=ca \
    --mount=type=bind,from=locks,source=/locks/2.lock,target=/2.lock /install_image.sh /2.lock
RUN --mount=type=bind,source=scripts/install_image.sh,target=/install_image.sh --mount=type=secret,id=ca \
    --mount=type=bind,from=locks,source=/locks/3.lock,target=/3.lock /install_image.sh /3.lock

ARG TORCH_INDEX_URL
ARG TORCH_VERSION
WORKDIR /opt/gnn
COPY requirements.lock ./
COPY scripts/environment.sh scripts/
RUN --mount=type=bind,source=scripts/install_image.sh,target=/install_image.sh --mount=type=secret,id=ca \
    /install_image.sh

COPY LICENSE run.sh run_multigpu.sh ./
COPY scripts/entrypoint.sh scripts/
COPY benchmarks/gpu.py benchmarks/
COPY gnn_training gnn_training
RUN python -m compileall -q benchmarks gnn_training

WORKDIR /workspace
ENTRYPOINT ["/usr/bin/tini", "--", "entrypoint.sh"]

ARG VERSION=unknown
ARG REVISION=unknown
ARG CREATED=unknown
ENV GNN_REVISION=$REVISION
LABEL org.opencontainers.image.title="Graph-coloring GNN training" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.created="$CREATED"
