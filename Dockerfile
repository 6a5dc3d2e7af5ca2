# ./build_and_push.sh NAME builds, tries and pushes this.
#   docker run --gpus all -v "$PWD:/workspace" NAME run_multigpu.sh
# Python 3.11 is the newest that the oldest promised ONNX Runtime was built for.
ARG BASE_IMAGE=python:3.11-slim-bookworm

# The environment of a clone, made by its script, then cut into parts. Of this stage nothing else is kept.
FROM $BASE_IMAGE AS environment
ARG TORCH_INDEX_URL
ARG TORCH_VERSION
ENV GNN_VENV=/opt/venv
WORKDIR /opt/gnn
COPY requirements.lock requirements-torch.lock requirements-oldest.lock ./
COPY scripts/environment.sh scripts/install_image.sh scripts/layers.py scripts/
# The secret `ca` is a bundle of certificates, for where a private authority signs what comes from the package index.
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=ca scripts/install_image.sh /parts

FROM $BASE_IMAGE
# The compiler and the headers of Python are for torch.compile. Of these packages any version will do.
# hadolint ignore=DL3008
RUN set -- tini g++ && \
    if [ ! -e "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ]; then \
        set -- "$@" python3-dev; fi && \
    if [ $# -gt 2 ] || ! command -v tini || ! command -v g++; then \
        apt-get update && apt-get install -y --no-install-recommends "$@"; fi && \
    rm -rf /var/lib/apt/lists/* && \
    useradd --uid 1000 --user-group --no-create-home --home-dir /nonexistent gnn

# Four parts of like size hold torch and CUDA and are pulled side by side; the last, all the rest, changes most often.
COPY --from=environment /parts/1 /opt/venv
COPY --from=environment /parts/2 /opt/venv
COPY --from=environment /parts/3 /opt/venv
COPY --from=environment /parts/4 /opt/venv
COPY --from=environment /parts/0 /opt/venv

ENV PATH=/opt/venv/bin:/opt/gnn:/opt/gnn/scripts:$PATH \
    PYTHONPATH=/opt/gnn \
    PYTHONSAFEPATH=1 \
    GNN_VENV=/opt/venv \
    GNN_WORKSPACE=/workspace \
    GNN_HEARTBEAT=/dev/shm/gnn-heartbeat \
    TORCHINDUCTOR_CACHE_DIR=/workspace/.cache/torch-compile \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

WORKDIR /opt/gnn
COPY LICENSE run.sh run_multigpu.sh requirements*.lock ./
COPY scripts/environment.sh scripts/entrypoint.sh scripts/healthcheck.sh scripts/
COPY gnn_training gnn_training
COPY models/shipped models/shipped
RUN python -m compileall -q --invalidation-mode unchecked-hash gnn_training

WORKDIR /workspace
ENTRYPOINT ["/usr/bin/tini", "--", "entrypoint.sh"]
HEALTHCHECK --interval=1m --timeout=10s --start-period=1m CMD ["healthcheck.sh"]

ARG VERSION=unknown
ARG REVISION=unknown
ARG CREATED=unknown
ENV GNN_REVISION=$REVISION
LABEL org.opencontainers.image.title="Graph-coloring GNN training" \
      org.opencontainers.image.licenses="MIT" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.created="$CREATED"
