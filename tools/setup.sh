#!/usr/bin/env bash
# Copyright 2026 The USER authors
# SPDX-License-Identifier: Apache-2.0
#
# Sets the checkout up: Python environment in .venv, workspace in build/ and install/.
#
#   tools/setup.sh          what a run needs
#   tools/setup.sh test     the test tools, too
#
# With a sourced ROS 2 Jazzy that one is used; without, ROS 2 comes as Python wheels. A step that is
# done leaves a stamp with the hash of what it was made from and is done again only when that
# changes; an interrupted one is taken up again. PYTHON=python3.12 names the interpreter of a new
# environment, else one is looked for.
set -euo pipefail
shopt -s nullglob
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD venv=$PWD/.venv stamps=$PWD/.venv/stamps python=$PWD/.venv/bin/python
what=${1:-run}

say() { printf '%s\n' "$*"; }
fail() { printf 'set-up: %s\n' "$@" >&2; exit 2; }

steps_n=5 step_n=2
[ "$what" = test ] && steps_n=6
# step STAMP HASH WORDS: true if the step has to be done.
step() {
  step_n=$((step_n + 1))
  [ "$(cat "$stamps/$1" 2>/dev/null)" = "$2" ] && return 1
  say "set-up $step_n/$steps_n: $3"
}
done_with() { printf '%s\n' "$2" > "$stamps/$1"; }
hash_of() { { cat "$@"; printf '%s' "$identity"; } | sha256sum | cut -d' ' -f1; }
pin_of() { grep "^$1==" requirements.txt; }

case "${ROS_DISTRO:-}" in
  '') ros='' ;;
  jazzy) ros=jazzy ;;
  *) fail "the sourced ROS 2 is '$ROS_DISTRO', USER is built for jazzy." \
          'Source /opt/ros/jazzy/setup.bash in a new shell, or take a shell without ROS.' ;;
esac

# One set-up at a time in one checkout; the lock ends with the process.
exec 9> .setup.lock
flock -n 9 || { say 'set-up: another one is at work in this checkout, waiting for it'; flock 9; }

# --- 1 the system's tools ---------------------------------------------------------------------
fits() {
  "$1" -c 'import ensurepip, sys, venv
sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
}
# True if pip, as it is set up here, offers this interpreter a CPU wheel of PyTorch.
has_small_torch() {
  PIP_BREAK_SYSTEM_PACKAGES=1 "$1" -m pip install --quiet --dry-run --no-deps --ignore-installed \
    --report - "$(pin_of torch)" 2>/dev/null \
    | grep -qE '"url": "(file:[^"]*|[^"]*(\+|%2[Bb])cpu[^"]*)"'
}
find_python() {
  local candidate first=''
  local candidates=(python3.12 python3.11 python3.13 python3)
  [ -z "$ros" ] || candidates=(/usr/bin/python3)  # the one that ROS 2 is built for
  [ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
  for candidate in "${candidates[@]}"; do
    fits "$candidate" || continue
    first=${first:-$candidate}
    [ "${#candidates[@]}" -gt 1 ] && has_small_torch "$candidate" || continue
    first=$candidate
    break
  done
  echo "$first"
}
# What is missing, as Debian and Ubuntu call it.
missing_packages() {
  local tool missing=()
  for tool in gcc g++ cmake make git; do
    command -v "$tool" > /dev/null || missing+=("$tool")
  done
  if [ -z "$1" ]; then
    missing+=(python3 python3-venv python3-dev)
  elif ! [ -f "$("$1" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ]; then
    missing+=(python3-dev)
  fi
  echo "${missing[*]}"
}

# --- 2 the environment ------------------------------------------------------------------------
kind="${ros:-wheels} $root"
if [ "$(cat "$stamps/environment" 2>/dev/null)" != "$kind" ] || ! "$python" -c '' 2>/dev/null; then
  say "set-up 1/$steps_n: tools of the system"
  base=$(find_python)
  [ -n "$base" ] || [ -z "${PYTHON:-}" ] \
    || fail "'$PYTHON' is no Python 3.11 to 3.13 with venv." 'Give another by PYTHON=...'
  missing=$(missing_packages "$base")
  if [ -n "$missing" ]; then
    line="apt-get install -y $missing"
    [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null \
      || fail "the system lacks: $missing" "Install it by: sudo $line"
    say "  $line"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive $line \
      || fail "'$line' failed; its message is above."
    base=$(find_python)
    [ -n "$base" ] || fail 'no Python 3.11 to 3.13 with venv was found.' \
      'Install one, or name it by PYTHON=...'
  fi
  say "set-up 2/$steps_n: environment .venv with $("$base" --version) (${ros:-ROS 2 as wheels})"
  rm -rf "$venv"
  "$base" -m venv ${ros:+--system-site-packages} "$venv"
  mkdir -p "$stamps"
  done_with environment "$kind"
fi
identity="$("$python" -c 'import sys; print(sys.version, sys.executable)') $kind"
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

# --- 3, 4 libraries ---------------------------------------------------------------------------
# pip_install LOG ARGUMENTS: shows the large downloads, the sum, and what went wrong.
pip_install() {
  local log=$venv/pip-$1.log line
  shift
  [ ! -f "$stamps/installing" ] \
    || "$python" -S tools/forget_half_installed.py "$site" "$stamps/installing"
  touch "$stamps/installing"
  "$python" -m pip install --no-input --progress-bar off "$@" 2>&1 | tee "$log" \
    | while read -r line; do
        if [[ $line =~ ^Downloading\ (.*/)?([^/ ]+\ \([0-9.]+\ [MG]B\)) ]]; then
          say "  ${BASH_REMATCH[2]}"
        elif [[ $line == ERROR* || $line == Installing* ]]; then
          say "  ${line:0:300}" | sed 's/^  Installing.*/  unpacking/'
        fi
      done || fail "the libraries could not be installed; pip's whole output is in $log." \
        'Mend the cause (network, disk) and call the same again: it goes on where it stopped.'
  awk '/^ *Downloading .*\(/ { n++; size = $(NF - 1); sub(/\(/, "", size)
         mb += size * ($NF ~ /^M/ ? 1 : $NF ~ /^G/ ? 1000 : $NF ~ /^k/ ? 0.001 : 0) }
       /^ *(Processing|Using cached) / { local++ }
       END { printf "  %d files downloaded (%.0f MB), %d were at hand\n", n, mb, local }' "$log"
  rm "$stamps/installing"
}

torch=$(pin_of torch)
hash=$(hash_of <<< "$torch")
if step torch "$hash" "$torch, the largest part (0.2 GB for CPUs, 3 GB with CUDA)"; then
  pins=$(grep -hE '^[a-z]' requirements.txt requirements-build.txt | grep -v '^numpy==' | sort -u)
  pip_install torch -c <(echo "$pins") "$torch"
  done_with torch "$hash"
fi

locks=(requirements.txt requirements-build.txt)
[ -n "$ros" ] || locks+=(requirements-ros.txt)
numpy=$(pin_of numpy)
[ -z "$ros" ] || numpy='numpy<2'  # the message packages of apt are built against NumPy 1
hash=$(hash_of "${locks[@]}")
if step libraries "$hash" 'libraries and build tools (0.4 GB)'; then
  pins=$(grep -hE '^[a-z]' "${locks[@]}" | grep -vE '^(torch|numpy)==' | sort -u)
  pip_install libraries --no-deps -r <(echo "$numpy"; echo "$pins")
  if [ -z "$ros" ]; then
    # The wheels' CMake files name the include folders of the machine that they were built on.
    include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    numpy_include=$("$python" -c 'import numpy; print(numpy.get_include())')
    find "$venv/share" -name '*.cmake' -exec sed -i -E \
      -e "s#/opt/python/[^;\" ]*/numpy/_core/include#$numpy_include#g" \
      -e "s#/opt/python/[^;\" ]*/include/python3[.0-9]+#$include#g" {} +
  fi
  # RealSense cameras and drawn ones alone want these, so nothing ends without.
  lacks=()
  "$python" -c 'import ctypes; ctypes.CDLL("libusb-1.0.so.0")' 2>/dev/null || lacks+=(libusb-1.0-0)
  MUJOCO_GL=egl "$python" -c 'from mujoco.egl import GLContext; GLContext(8, 8)' &>/dev/null \
    || lacks+=(libegl1 libegl-mesa0 libgl1-mesa-dri)
  if [ "${#lacks[@]}" -gt 0 ]; then
    line="apt-get install -y ${lacks[*]}"
    if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
      say "  $line"
      { apt-get update -qq && DEBIAN_FRONTEND=noninteractive $line > /dev/null; } || true
    else
      say "  RealSense (libusb) or drawn cameras (EGL) need: sudo $line"
    fi
  fi
  done_with libraries "$hash"
fi

# --- 5 test tools -----------------------------------------------------------------------------
if [ "$what" = test ]; then
  old_numpy=numpy==1.26.4  # beside ours, for the tests of what also has to work under a sourced ROS 2
  hash=$(hash_of requirements-test.txt <(echo "$old_numpy"))
  if step test-tools "$hash" 'test tools (0.1 GB)'; then
    pip_install test-tools --no-deps -r requirements-test.txt
    "$python" -c 'import sys; sys.exit(sys.version_info >= (3, 13))' \
      && pip_install numpy1 --no-deps --upgrade --target "$venv/numpy1" "$old_numpy"
    done_with test-tools "$hash"
  fi
fi

# --- 6 the workspace --------------------------------------------------------------------------
# Python is linked, not copied: what counts is what is generated or listed at build time.
read_by_build=(colcon.meta tools/setup.sh tools/user_workspace.py msg/* srv/* action/*
               src/*/package.xml src/*/setup.* src/*/CMakeLists.txt)
hash=$({ printf '%s\n' "${read_by_build[@]}" launch/*.py config/*.* config/*/*.*
         cat "${read_by_build[@]}" "$stamps/libraries"; } | hash_of)
if step build "$hash" 'workspace (about a minute, for the messages)'; then
  # A killed compiler leaves broken files that look new.
  [ ! -f build/building ] || rm -rf build install
  mkdir -p build
  touch build/building
  cp tools/user_workspace.py "$site/user_workspace.py"
  echo 'import user_workspace' > "$site/_user_workspace.pth"  # sorts before the wheels' own
  [ -n "$ros" ] || export AMENT_PREFIX_PATH=$venv CMAKE_PREFIX_PATH=$venv
  PATH=$venv/bin:$PATH "$python" -m colcon build --symlink-install \
    --event-handlers console_cohesion+ \
    --cmake-args -DPython3_EXECUTABLE="$python" -DPython3_FIND_VIRTUALENV=ONLY 2>&1 \
    | tee build/setup.log \
    | { grep --line-buffered -E '^(Finished|Failed) ' || true; } | sed -u 's/^/  /' \
    || { rm build/building; tail -n 40 build/setup.log >&2
         fail 'the workspace could not be built; the end of build/setup.log is above.'; }
  printf '#!%s\nimport sys\n\nfrom user_core.cli import main\n\nsys.exit(main())\n' "$python" \
    > "$venv/bin/user"
  chmod +x "$venv/bin/user"
  rm build/building
  done_with build "$hash"
  say 'set-up: done'
fi
