# Short names for the scripts and for kubectl, in bash: `source docker/aliases.sh` in a clone puts the commands of
# docker/bin on PATH, where the container has them always. `aliases` lists them.

_aaml_bin=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/bin" && pwd)
[[ :$PATH: == *":$_aaml_bin:"* ]] || PATH=$_aaml_bin:$PATH
unset _aaml_bin
