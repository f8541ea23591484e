#!/bin/sh
# Finds a Python and hands over to install.py. In sh, because a machine may have no Python at all.
# PYTHON=/path/to/python chooses one.

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

version_of() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || echo unknown
}

refuse() {
    echo "$1" >&2
    exit 1
}

needed="and the course needs 3.11 or newer"
if [ -n "$PYTHON" ]; then
    python=$PYTHON
    command -v "$python" >/dev/null 2>&1 ||
        refuse "There is no program $python: set PYTHON to a Python 3.11 or newer."
    is_new_enough "$python" ||
        refuse "$python is Python $(version_of "$python"), $needed: set PYTHON to a newer one."
else
    for python in python3.11 python3.12 python3.13 python3.14 python3 none; do
        is_new_enough "$python" && break
    done
    if [ "$python" = none ]; then
        advice="$needed: install one, or name it with make lab PYTHON=/path/to/python."
        command -v python3 >/dev/null 2>&1 || refuse "There is no Python here, $advice"
        refuse "The newest Python here is $(version_of python3), $advice"
    fi
fi
exec "$python" "$(dirname "$0")/install.py" "$@"
