# The controller. Needs no GPU, no root and no database server.
#   docker build -f deploy/docker/controller.Dockerfile -t joulecut-controller:0.1.0 .
ARG PYTHON=python:3.11-slim

FROM ${PYTHON} AS build
WORKDIR /src
COPY . .
ENV NUMBA_CACHE_DIR=/opt/compiled
# The solver's inner loops are compiled here for the build machine's kind of processor. On another kind
# they are compiled again at the first plan, which takes about twenty seconds.
RUN python -m venv --without-pip /opt/joulecut \
    && pip --no-cache-dir --python /opt/joulecut/bin/python install -c constraints/all.txt '.[controller]' \
    && /opt/joulecut/bin/python -m compileall -q /opt/joulecut/lib \
    && /opt/joulecut/bin/python -m joulecut_engine.optimize.warmup

FROM ${PYTHON}
COPY --from=build /opt/joulecut /opt/joulecut
# A directory of its own, because it grows. With a read-only root, mount a copy and name it here.
COPY --from=build --chown=65532:65532 /opt/compiled /opt/joulecut/compiled
ENV PATH=/opt/joulecut/bin:$PATH NUMBA_CACHE_DIR=/opt/joulecut/compiled \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
EXPOSE 9440
ENTRYPOINT ["joulecut-controller"]
CMD ["--config", "/etc/joulecut/controller.yaml"]
