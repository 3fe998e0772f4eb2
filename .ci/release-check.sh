#!/usr/bin/env bash
# Check that this commit can be released as the version that pyproject.toml names. See "Releases" in CONTRIBUTING.md.
#
#   VENV  the environment with the tools
# shellcheck disable=SC2329  # `check` calls the functions by their names
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

python=${VENV:-.venv}/bin/python
failed=0

# check TEXT COMMAND...: one line for each condition.
check() {
    local text=$1 said
    shift
    if said=$("$@" 2>&1); then
        printf '  ok      %s\n' "$text"
    else
        printf '  FAILED  %s\n' "$text"
        [[ -z $said ]] || printf '          %s\n' "${said//$'\n'/$'\n          '}"
        failed=1
    fi
}

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
dist=$(mktemp -d)
trap 'rm -rf "$dist"' EXIT

semantic() { [[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]]; }
clean() {
    local changed
    changed=$(git status --porcelain)
    [[ -z $changed ]] || { echo "$changed" && return 1; }
}
same() { grep -Fx "__version__ = \"$version\"" hpc_launch/__init__.py || { sed -n '/^__version__/p' hpc_launch/__init__.py && return 1; }; }
changelog() {
    grep -qE "^## \[$version\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md ||
        { echo "CHANGELOG.md needs the line: ## [$version] - $(date +%F)" && return 1; }
}
unreleased() {
    # The section [Unreleased] is there, and empty.
    awk '/^## /{inside = /^## \[Unreleased\]/; found += inside; next} inside && NF {lines++}
        END {exit !(found == 1 && !lines)}' CHANGELOG.md ||
        { echo "move the entries of [Unreleased] to [$version], and keep the empty heading" && return 1; }
}
tagged() {
    [[ $(git tag --points-at HEAD) == *"v$version"* ]] || {
        git rev-parse -q --verify "refs/tags/v$version" >/dev/null && echo "v$version is on another commit" ||
            echo "run: git tag -a v$version -m 'hpc-launch $version'"
        return 1
    }
}
wheel() { "$python" -m pip wheel -q --no-deps -w "$dist" . && [[ -e $dist/hpc_launch-$version-py3-none-any.whl ]]; }
data() {
    # Every tracked file of these folders is in the wheel.
    comm -23 <(git ls-files slurm_templates site_configs containers examples/tiny-gpt | sed 's|^|hpc_launch/_data/|' | sort) \
        <("$python" -m zipfile -l "$dist"/*.whl | awk '{print $1}' | sort) >"$dist/missing"
    [[ ! -s $dist/missing ]] || { cat "$dist/missing" && return 1; }
}

echo "hpc-launch $version"
check "the version is MAJOR.MINOR.PATCH" semantic
check "the working tree is clean" clean
check "hpc_launch/__init__.py has the same version" same
check "CHANGELOG.md has a dated section [$version]" changelog
check "the section [Unreleased] is empty" unreleased
check "this commit has the tag v$version" tagged
check "the wheel builds" wheel
check "the wheel holds templates, profiles, recipes and the example" data
exit "$failed"
