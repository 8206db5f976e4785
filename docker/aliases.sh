# Short names for the scripts and for kubectl: `source docker/aliases.sh` in a clone, sourced already in the container.
# `aliases` lists them. For bash.

AAML_HOME=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
export AAML_HOME

# The clone's own Python where `make setup` made one; the container has one Python only.
if [[ -x $AAML_HOME/.venv/bin/python ]]; then
    _aaml_python=$AAML_HOME/.venv/bin/python
else
    _aaml_python=python3
fi

# Without a kubectl on PATH, the one that belongs to `aaml cluster up`.
if command -v kubectl > /dev/null; then
    _aaml_kubectl=kubectl
else
    printf -v _aaml_kubectl '%q cluster kubectl --' "$AAML_HOME/.venv/bin/aaml"
fi

_aaml_names=()
_aaml_texts=()

# name, command, text
_aaml_alias() {
    # shellcheck disable=SC2139  # the clone's path belongs into the alias: it must work from any folder
    alias "$1=$2"
    _aaml_names+=("$1")
    _aaml_texts+=("$3")
}

# name, text, script and its flags
_aaml_script() {
    local command
    printf -v command '%q ' "$_aaml_python" "$AAML_HOME/scripts/$3" "${@:4}"
    _aaml_alias "$1" "${command% }" "$2"
}

_aaml_script rundqn "DQN scheduler with an MLP" scheduler_dqn.py
_aaml_script rungnn "DQN scheduler with a graph network" scheduler_gnn.py
_aaml_script runacdqn "actor-critic scheduler with an MLP" actorcritic_dqn.py
_aaml_script runacgnn "actor-critic scheduler with a graph network" actorcritic_gnn.py
_aaml_script runsim "deploy a workload for a scheduler" workload_deployment_simulator.py
_aaml_script ktop "live table of nodes and pods" kinfo.py
_aaml_script cleancluster "back to zero pods" cleanup_cluster.py
_aaml_alias k "$_aaml_kubectl" "kubectl"
_aaml_alias kg "$_aaml_kubectl get" "kubectl get"
_aaml_alias kgp "$_aaml_kubectl get pods" "pods"
_aaml_alias kgn "$_aaml_kubectl get nodes" "nodes"
_aaml_alias kge "$_aaml_kubectl get events --sort-by=.lastTimestamp" "events, the latest last"
_aaml_alias kd "$_aaml_kubectl describe" "kubectl describe"
_aaml_alias kdp "$_aaml_kubectl describe pod" "describe a pod"
_aaml_alias kdel "$_aaml_kubectl delete" "kubectl delete"
_aaml_alias kl "$_aaml_kubectl logs" "kubectl logs"
_aaml_alias aliases _aaml_list "this list"

_aaml_list() {
    local i
    for i in "${!_aaml_names[@]}"; do
        printf '%-14s %s\n' "${_aaml_names[i]}" "${_aaml_texts[i]}"
    done
}

unset -f _aaml_alias _aaml_script
unset _aaml_python _aaml_kubectl
