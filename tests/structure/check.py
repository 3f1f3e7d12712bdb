#!/usr/bin/env python3
"""The shape of the repository: who may include whom, how long files are, what lies where.

  check.py CHECK --root R     prints every violation; fails if there is one
"""
import argparse
import fnmatch
import pathlib
import re
import sys

LONGEST_FILE = 600
FOLDERS = ["plugin_api", "sdk", "runtime", "kernels", "plugins", "configs", "tests"]
TOP_LEVEL = {*FOLDERS, "CMakeLists.txt", "CMakePresets.json", "Makefile", "README.md", "LICENSE",
             "CONTRIBUTING.md"}
# What the code of a folder may include of ours, besides itself.
MAY_INCLUDE = {
    "plugin_api": set(),
    "sdk": {"plugin_api"},
    "plugins": {"sdk", "plugin_api", "kernels"},
    "kernels": {"sdk", "plugin_api"},
    "runtime": {"plugin_api", "sdk"},
    "tests": set(FOLDERS),
}
SOURCES = {".h", ".c", ".cc", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.M)
SNAKE_CASE = re.compile(r"^[a-z0-9_.-]+$")
# Names that are not ours to choose, or that people expect.
OTHER_NAMES = {"CMakeLists.txt", "README.md", "CapstanConfig.cmake", "CapstanPlugin.cmake"}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
STANDARD_C = {"assert.h", "ctype.h", "errno.h", "float.h", "limits.h", "math.h", "stdarg.h",
              "stdbool.h", "stddef.h", "stdint.h", "stdio.h", "stdlib.h", "string.h"}


def files_of(root, folder):
    return sorted(path for path in (root / folder).rglob("*")
                  if path.is_file() and "__pycache__" not in path.parts)


def ignored_at_top(root):
    """Patterns of .gitignore for the top level: what builds and runs leave there."""
    listing = root / ".gitignore"
    lines = listing.read_text().split() if listing.is_file() else []
    return [line.strip("/") for line in lines if line.startswith("/")]


def check_top_level(root):
    ignored = ignored_at_top(root)
    for path in sorted(root.iterdir()):
        if not path.name.startswith(".") and path.name not in TOP_LEVEL \
                and not any(fnmatch.fnmatch(path.name, pattern) for pattern in ignored):
            yield path, f"does not belong at the top level; put it into one of {', '.join(FOLDERS)}"


def check_includes(root):
    for folder, allowed in MAY_INCLUDE.items():
        for path in files_of(root, folder):
            if path.suffix not in SOURCES:
                continue
            for name in INCLUDE.findall(path.read_text(errors="replace")):
                top = name.split("/")[0]
                if name.startswith(("../", "./")):
                    yield path, f'includes "{name}"; write the path from the root of the repository'
                elif top in FOLDERS and top != folder and top not in allowed:
                    allowed_text = ", ".join(sorted(allowed)) or "nothing of ours"
                    yield path, f'includes "{name}", but {folder}/ may include {allowed_text}'
                elif folder == "plugin_api" and top != folder and name not in STANDARD_C:
                    yield path, f"includes <{name}>; the ABI needs the C standard library only"


def check_length(root):
    for folder in FOLDERS:
        for path in files_of(root, folder):
            if path.suffix not in SOURCES | {".py", ".sh", ".cmake"}:
                continue
            lines = path.read_text(errors="replace").count("\n")
            if lines > LONGEST_FILE:
                yield path, f"has {lines} lines, more than {LONGEST_FILE}; find the missing noun"


def check_names(root):
    for folder in FOLDERS:
        for path in files_of(root, folder):
            kept_input = "corpus" in path.parts  # named by the fuzzer
            if path.suffix in SOURCES | {".py", ".sh", ".toml"} and not kept_input \
                    and path.name not in OTHER_NAMES and not SNAKE_CASE.match(path.name):
                yield path, "is not named in snake_case"


def check_guards(root):
    for folder in ["plugin_api", "sdk", "runtime", "kernels", "plugins"]:
        for path in files_of(root, folder):
            if path.suffix != ".h" or path.name.endswith("-inl.h"):
                continue  # -inl.h headers are included once a SIMD target, by design
            relative = path.relative_to(root).as_posix()
            guard = "CAPSTAN_" + re.sub(r"[^A-Za-z0-9]", "_", relative).upper() + "_"
            text = path.read_text()
            if not re.search(rf"^#pragma once$|^#ifndef {guard}\n#define {guard}$", text, re.M):
                yield path, f"has neither #pragma once nor the include guard {guard}"


def check_unfinished(root):
    for folder in FOLDERS:
        for path in files_of(root, folder):
            if path.suffix not in SOURCES or path.parent.name == "structure":
                continue
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                if UNFINISHED.search(line):
                    yield f"{path}:{number}", "leaves something unfinished"


def check_plugins(root):
    plugins = root / "plugins"
    for listing in sorted(plugins.glob("*/*/CMakeLists.txt")):
        folder = listing.parent
        if not (folder / "README.md").is_file():
            yield folder, "has no README.md (what it does, options, formulas with source, limits)"
        if "capstan_add_plugin(" not in listing.read_text():
            yield listing, "does not call capstan_add_plugin"


CHECKS = {
    "top_level": check_top_level,
    "includes": check_includes,
    "length": check_length,
    "names": check_names,
    "guards": check_guards,
    "unfinished": check_unfinished,
    "plugins": check_plugins,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("check", choices=CHECKS)
    parser.add_argument("--root", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    violations = list(CHECKS[arguments.check](arguments.root))
    for path, sentence in violations:
        print(f"{path} {sentence}.", file=sys.stderr)
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
