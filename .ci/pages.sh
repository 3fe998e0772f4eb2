#!/usr/bin/env bash
# Build what the repository's pages serve, in build/published: a folder for main and one for each release that has a
# site, and the list of them, from which the site makes its menu of versions.
#
#   REPOSITORY_URL  the address of the repository, for the links to edit a page
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

published=$PWD/build/published
rm -rf "$published"
mkdir -p "$published"
export VERSION_PROVIDER=mike EDIT_URI=edit/main/docs/

versions=()
# publish VERSION TITLE FOLDER: build the site of a checkout.
publish() {
    make -C "$3" site
    cp -r "$3/build/site" "$published/$1"
    versions+=("{\"version\": \"$1\", \"title\": \"$2\", \"aliases\": []}")
}

publish main "main (not released)" "$PWD"
newest=main
while read -r tag; do
    git cat-file -e "$tag:mkdocs.yml" 2>/dev/null || continue
    checkout=build/checkout-$tag
    git worktree add --force --detach "$checkout" "$tag"
    publish "${tag#v}" "${tag#v}" "$checkout"
    [[ $newest != main ]] || newest=${tag#v}
    git worktree remove --force "$checkout"
done < <(git tag --list 'v*' --sort=-version:refname)

(
    IFS=,
    printf '[%s]\n' "${versions[*]}"
) >"$published/versions.json"
printf '<!doctype html><meta http-equiv="refresh" content="0; url=%s/"><title>hpc-launch</title>\n' "$newest" \
    >"$published/index.html"
