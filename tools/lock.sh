#!/usr/bin/env bash
# Pin every dependency: constraints.txt (versions) and requirements/{run,test}.txt (with hashes).
# Needs `uv` on the PATH; run it to take newer versions, then `make test`.
# Torch and what only its CUDA build needs are left out of the hashed files, the latter of
# constraints.txt too: the build depends on the machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

compile() {
    uv pip compile --quiet --upgrade --universal --python-version 3.11 --no-header --no-annotate "$@"
}

# Drops whole entries, their hashes included.
without_cuda() {
    awk '/^[a-z]/ { drop = /^(nvidia-|cuda-|triton==)/ } !drop' "$1" >"$1.tmp" && mv "$1.tmp" "$1"
}

hashed() {
    local output=$1
    shift
    compile --generate-hashes --no-emit-package torch -c constraints.txt -o "$output" \
        pyproject.toml requirements/build.in "$@"
    without_cuda "$output"
}

compile -o constraints.txt pyproject.toml requirements/build.in \
    --extra local --extra postgres --extra redis --extra dev
# A local build tag (+cpu) would pin everybody to one machine's build.
version=$(sed -n -E 's/^torch==([0-9.]+).*/\1/p' constraints.txt | head -n 1)
sed -i '/^torch==/d' constraints.txt
echo "torch==$version" >>constraints.txt
without_cuda constraints.txt
hashed requirements/run.txt --extra local
hashed requirements/test.txt --extra local --extra postgres --extra redis --extra dev
