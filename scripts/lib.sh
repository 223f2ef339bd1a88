# Shared by scripts/test and scripts/demo: finds a Python and makes the checkout's own virtual environment.
# Sourced, never run. Needs Python 3.11 or newer with pip; no environment variable, no Docker, no PostgreSQL.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
venv="$root/.venv"
# These would send pip's or Python's work to another place than the virtual environment.
unset PYTHONHOME PYTHONPATH PIP_USER PIP_TARGET PIP_PREFIX VIRTUAL_ENV

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
die() { say "$*"; exit 1; }

# Prints the first Python >= 3.11 that runs. Tried by running it: a pyenv shim exists for versions that are not
# active, and fails only when it is called.
find_python() {
    local name
    for name in python3.11 python3.12 python3.13 python3.14 python3 python; do
        if "$name" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            "$name" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    die "found no Python 3.11 or newer that runs (tried python3.11 to python3.14, python3, python); install one"
}

# What the installed state depends on. The place counts, too: scripts in a virtual environment hold its full path.
fingerprint() {
    "$1" - "$root" "$2" <<'PYTHON'
import hashlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
parts = [repr(sys.argv[1:]).encode(), sys.version.encode()]
parts += [(root / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
print(hashlib.sha256(b"\0".join(parts)).hexdigest())
PYTHON
}

# Is what is needed for the extras "$1" installed?
is_ready() {
    local stamp="$venv/.installed-$1"
    [ -r "$stamp" ] && [ -x "$venv/bin/python" ] || return 1
    [ "$(cat "$stamp")" = "$(fingerprint "$venv/bin/python" "$1" 2>/dev/null)" ]
}

require_writable() {
    local path
    for path in "$root" "$venv"; do
        if [ -e "$path" ] && [ ! -w "$path" ]; then
            die "$path has to be written to and belongs to user $(ls -ld "$path" | awk '{print $3}'), not to" \
                "$(id -un): run this as that user, or in a clone of your own"
        fi
    done
}

# Makes .venv and installs the project into it with the extras "$1" (such as "embedded,test"); returns at once when
# that has been done before for the same pyproject.toml, constraints.txt, Python and place.
set_up() {
    local extras="$1" python log status
    is_ready "$extras" && return
    require_writable
    python="$(find_python)" || exit 1
    log="$(mktemp "${TMPDIR:-/tmp}/coordinator-setup.XXXXXX")" || die "no temporary file could be made"
    say "making $venv with $python and installing the project with [$extras]; once, about a minute"
    if ! { make_venv "$python" && pip_install "$python" -c "$root/constraints.txt" -e "$root[$extras]"; } >"$log" 2>&1
    then
        tail -n 40 "$log" >&2
        die "the set-up failed; above is the end of its output, all of it is in $log"
    fi
    rm -f "$log"
    fingerprint "$venv/bin/python" "$extras" >"$venv/.installed-$extras"
    is_ready "$extras" || die "the set-up of $venv finished and is not usable; remove that folder and try again"
    say "ready"
}

make_venv() {
    # Debian's Python may lack ensurepip; then the Python's own pip installs into the virtual environment.
    if [ -x "$venv/bin/python" ] && [ "$("$venv/bin/python" -c 'import sys; print(sys.version, sys.prefix)' 2>&1)" = \
        "$("$1" -c 'import sys; print(sys.version, sys.argv[1])' "$venv")" ]; then
        return 0
    fi
    if "$1" -c 'import ensurepip' 2>/dev/null; then
        "$1" -m venv --clear "$venv"
    else
        "$1" -m venv --clear --without-pip "$venv"
    fi
}

pip_install() {
    local python="$1"
    shift
    if "$venv/bin/python" -c 'import pip' 2>/dev/null; then
        "$venv/bin/python" -m pip --disable-pip-version-check --no-input install --quiet "$@"
    else
        "$python" -m pip --python "$venv/bin/python" --disable-pip-version-check --no-input install --quiet "$@"
    fi
}
