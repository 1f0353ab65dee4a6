# shellcheck shell=bash disable=SC2034
# packages.sh - which Debian packages are needed, and how they get here. Sourced by quickstart.sh and
# tests/run.sh.
build_packages=(gcc libc6-dev pkg-config cmake ninja-build libopenmpi-dev openmpi-bin libdnnl-dev
    libinih-dev libjansson-dev zlib1g-dev libxxhash-dev libhwloc-dev
    libturbojpeg0-dev libpng-dev libprotobuf-c-dev protobuf-c-compiler)

# install_packages NAME...: installs those that are missing, as root or through sudo, or says which.
install_packages() {
    local package missing=() as_root=()
    if ! command -v dpkg-query >/dev/null; then
        echo "This is not a Debian system: its counterparts of these packages are needed: $*" >&2
        return 0
    fi
    for package in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
            missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "These packages are missing, and only root can install them (there is no sudo):" >&2
            echo "    apt-get install ${missing[*]}" >&2
            return 1
        fi
        as_root=(sudo)
    fi
    echo "Installing ${missing[*]}"
    # No sudo in front of nothing: an empty array expands to no word at all.
    ${as_root[@]+"${as_root[@]}"} apt-get update -q
    ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends "${missing[@]}"
}
