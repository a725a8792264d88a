#!/bin/sh
# Runs the tests against other people's code, in .venv-oracles; `--quick` for one seed instead of three.
# Other words go to pytest. PYTHON=... picks the interpreter. A peer that cannot be installed is named at the end.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
venv=$(pwd)/.venv-oracles
python=$venv/bin/python
missing=$venv/missing-peers

setup() {
    # The lists are copied in last, so an interrupted install is done again; so is one that missed a peer.
    cat "$here/requirements.txt" "$here/constraints.txt" | cmp -s - "$venv/installed" && [ ! -s "$missing" ] && return
    printf 'oracles: installing the peers into .venv-oracles\n' >&2
    [ -x "$python" ] || "${PYTHON:-python3}" -m venv "$venv"
    : > "$missing"
    install 'torch==2.13.0' numpy safetensors pytest requests
    grep -v '^#' "$here/requirements.txt" | while read -r peer; do
        install "$peer" || printf '%s\n' "$peer" >> "$missing"
    done
    cat "$here/requirements.txt" "$here/constraints.txt" > "$venv/installed"
}

install() {
    "$python" -m pip install --quiet --disable-pip-version-check -c "$here/constraints.txt" "$@" < /dev/null
}

setup
status=0
# The peers warn a good deal on import; our own tests turn warnings into errors elsewhere.
OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1 "$python" -m pytest tests/oracles -q -W default -p no:cacheprovider "$@" ||
    status=$?
if [ -s "$missing" ]; then
    while read -r peer; do printf 'oracles: %s could not be installed; its tests did not run\n' "$peer"; done < "$missing"
    # With no peer at all, pytest finds no test and ends with 5.
    [ "$status" = 5 ] && status=0
fi
exit "$status"
