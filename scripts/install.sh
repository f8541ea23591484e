#!/bin/sh
# Finds a Python and hands over to install.py. In sh, because a machine may have no Python at all.
# PYTHON=/path/to/python chooses one.

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

if [ -n "$PYTHON" ]; then
    candidates=$PYTHON
    if ! command -v "$PYTHON" >/dev/null 2>&1; then
        echo "There is no program $PYTHON: set PYTHON to a Python 3.11 or newer." >&2
        exit 1
    fi
    if ! is_new_enough "$PYTHON"; then
        found=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
        echo "$PYTHON is Python ${found:-unknown}, and the course needs 3.11 or newer:" \
             "set PYTHON to a newer one." >&2
        exit 1
    fi
    exec "$PYTHON" "$(dirname "$0")/install.py" "$@"
fi

for candidate in python3.11 python3.12 python3.13 python3.14 python3; do
    if is_new_enough "$candidate"; then
        exec "$candidate" "$(dirname "$0")/install.py" "$@"
    fi
done

found=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
if [ -n "$found" ]; then
    echo "The newest Python here is $found, and the course needs 3.11 or newer:" \
         "install one, or name it with make lab PYTHON=/path/to/python." >&2
else
    echo "There is no Python here, and the course needs 3.11 or newer:" \
         "install one, or name it with make lab PYTHON=/path/to/python." >&2
fi
exit 1
