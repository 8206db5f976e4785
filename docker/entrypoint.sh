#!/usr/bin/env bash
# Makes the cluster's nodes, then becomes supervisord, which runs Jupyter Lab, TensorBoard and the schedulers asked for.
# Runs natively too: the settings below are environment variables, their defaults suit a clone. With arguments it
# becomes that command instead (`docker compose run pytorch-container bash`).
set -euo pipefail

AAML_HOME=${AAML_HOME:-$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)} # where scripts/ and docker/ are
AAML_WORK_DIR=${AAML_WORK_DIR:-$AAML_HOME}                                    # where tlogs/, models/ ... are
AAML_RUN_DIR=${AAML_RUN_DIR:-${TMPDIR:-/tmp}/aaml-$(id -u)}                   # supervisord's socket and process id
AAML_BIND=${AAML_BIND:-127.0.0.1}
JUPYTER_PORT=${JUPYTER_PORT:-8888}
TENSORBOARD_PORT=${TENSORBOARD_PORT:-6006}
JUPYTER_TOKEN=${JUPYTER_TOKEN:-AAML} # set but empty is taken as unset: Jupyter would let everybody in
NODE_COUNT=${NODE_COUNT:-10}         # 0 leaves the cluster as it is
AAML_AUTOSTART=${AAML_AUTOSTART:-}   # programs of supervisord.conf, separated by commas
export AAML_HOME AAML_WORK_DIR AAML_RUN_DIR AAML_BIND JUPYTER_PORT TENSORBOARD_PORT JUPYTER_TOKEN NODE_COUNT

readonly SCHEDULERS="dqn gnn acdqn acgnn simulator"

fail() {
    echo "entrypoint: error: $*" >&2
    exit 2
}

prepare_folders() {
    local folder
    for folder in tlogs logs data models runs deployment_data notebooks; do
        if ! mkdir -p -- "$AAML_WORK_DIR/$folder" 2> /dev/null || ! [[ -w $AAML_WORK_DIR/$folder ]]; then
            fail "$AAML_WORK_DIR/$folder: $(id -un) ($(id -u):$(id -g)) cannot write there; expected a folder of that" \
                "user (APP_UID and APP_GID of the build, see docs/containers.md)"
        fi
    done
    mkdir -p -- "$AAML_RUN_DIR" && chmod 0700 -- "$AAML_RUN_DIR" # supervisord obeys whoever reaches its socket
}

# supervisord.conf reads one AAML_<PROGRAM>_AUTOSTART and one AAML_<PROGRAM>_FLAGS a scheduler.
choose_schedulers() {
    local name flags chosen
    IFS=', ' read -r -a chosen <<< "$AAML_AUTOSTART"
    for name in ${chosen[@]+"${chosen[@]}"}; do
        [[ " $SCHEDULERS " == *" $name "* ]] ||
            fail "AAML_AUTOSTART: '$name' is not accepted; expected some of: ${SCHEDULERS// /, }"
    done
    for name in $SCHEDULERS; do
        flags=AAML_${name^^}_FLAGS
        export "$flags=${!flags:-}"
        if [[ " ${chosen[*]-} " == *" $name "* ]]; then
            export "AAML_${name^^}_AUTOSTART=true"
        else
            export "AAML_${name^^}_AUTOSTART=false"
        fi
    done
}

# In the background, so that a SIGTERM is heard at once: bash runs a trap only after its foreground command has ended.
make_nodes() {
    local child status=0
    ((10#$NODE_COUNT > 0)) || return 0
    python3 "$AAML_HOME/scripts/create_nodes.py" "--node_count=$NODE_COUNT" < /dev/null &
    child=$!
    trap 'kill -TERM "$child" 2> /dev/null; wait "$child" 2> /dev/null; exit 143' TERM INT
    wait "$child" || status=$?
    trap - TERM INT
    ((status == 0)) || exit "$status"
}

(($# == 0)) || exec "$@"
[[ $NODE_COUNT =~ ^[0-9]+$ ]] || fail "NODE_COUNT: '$NODE_COUNT' is not accepted; expected a whole number, 0 or more"
prepare_folders
choose_schedulers
cd -- "$AAML_WORK_DIR"
make_nodes
export AAML_NODES_AUTOSTART=true # supervisord.conf reads it too
((10#$NODE_COUNT > 0)) || AAML_NODES_AUTOSTART=false
exec supervisord --configuration "$AAML_HOME/docker/supervisord.conf"
