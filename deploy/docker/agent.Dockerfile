# Agent, keeper and restore: one image, three commands.
#   docker build -f deploy/docker/agent.Dockerfile -t joulecut-agent:0.1.0 .
ARG PYTHON=python:3.11-slim

FROM ${PYTHON} AS build
WORKDIR /src
COPY . .
# The image has no pip; it runs from outside. Bytecode is compiled now, since the root may be read-only later.
RUN python -m venv --without-pip /opt/joulecut \
    && pip --no-cache-dir --python /opt/joulecut/bin/python install -c constraints/all.txt '.[agent]' \
    && /opt/joulecut/bin/python -m compileall -q /opt/joulecut/lib

FROM ${PYTHON}
COPY --from=build /opt/joulecut /opt/joulecut
COPY deploy/docker/keeper-alive.sh /opt/joulecut/bin/keeper-alive
ENV PATH=/opt/joulecut/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# Setting clocks needs CAP_SYS_ADMIN, effective only for root: the keeper is started with --user 0
# --cap-drop ALL --cap-add SYS_ADMIN. Nothing else needs more than this.
USER 65532:65532
EXPOSE 9430 9431
ENTRYPOINT ["joulecut-agent"]
CMD ["run", "--config", "/etc/joulecut/agent.yaml"]
