#!/bin/sh
# Print a Python of 3.11 or later, or say in one sentence what is missing.
# PYTHON=/path/to/python make run  overrides the search.
set -u
wanted='import sys; sys.exit(sys.version_info < (3, 11))'

if [ -n "${PYTHON:-}" ]; then
    if "$PYTHON" -c "$wanted" 2>/dev/null; then
        printf '%s\n' "$PYTHON"
        exit 0
    fi
    echo "fareway: PYTHON=$PYTHON is not a Python of 3.11 or later; set it to one that is." >&2
    exit 1
fi

for name in python3.11 python3.12 python3.13 python3.14 python3 python; do
    if command -v "$name" >/dev/null 2>&1 && "$name" -c "$wanted" 2>/dev/null; then
        command -v "$name"
        exit 0
    fi
done

echo "fareway: no Python of 3.11 or later was found; install one (Debian and Ubuntu: apt install python3 python3-venv) or name it: make run PYTHON=/path/to/python3.11" >&2
exit 1
