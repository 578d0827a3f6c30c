#!/bin/sh
# Prints the first Python that fits: the environment's own, the one in use, else the newest. When none fits,
# the one in use is printed all the same: make_env.py says what is wrong with it.
fits='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
for python in .venv/bin/python python3 python3.13 python3.12 python3.11 python; do
    if "$python" -c "$fits" 2>/dev/null; then
        echo "$python"
        exit 0
    fi
done
echo python3
