#!/usr/bin/env python3
"""The layout of every struct of plugin_api/, against the committed baseline layout.txt.

  layout.py check    --root R --compiler CC   fails on any difference, naming it
  layout.py asserts  --root R --output FILE   the baseline as C++ static assertions
  layout.py update   --root R --compiler CC   rewrites the baseline; refused when a released layout
                                              changes under the same ABI version (--unreleased allows
                                              it before the first release)

The baseline is of 64-bit targets, the only ones Capstan supports.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

STRUCT = re.compile(r"typedef\s+struct\s+(capstan_\w+)\s*\{(.*?)\}\s*\1\s*;", re.S)
POINTER_TO_FUNCTION = re.compile(r"\(\s*\*\s*(\w+)\s*\)\s*\(")
REMEDY = ("Fields may only be appended; then raise CAPSTAN_ABI_MINOR and run "
          "`cmake --build <build> --target abi_baseline`.")


def without_comments(text):
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def fields_of(body):
    """Names of the fields of a struct body, in order."""
    names = []
    for declaration in (part.strip() for part in body.split(";")):
        if not declaration:
            continue
        function = POINTER_TO_FUNCTION.search(declaration)
        if function:
            names.append(function.group(1))
            continue
        for declarator in declaration.split(","):
            names.append(re.search(r"(\w+)\s*(?:\[[^\]]*\])?\s*$", declarator).group(1))
    return names


def structs_of(root):
    found = []
    for header in sorted((root / "plugin_api").glob("*.h")):
        for name, body in STRUCT.findall(without_comments(header.read_text())):
            found.append((name, fields_of(body)))
    return found


def measure(root, compiler):
    """The layout as text, asked of the compiler."""
    headers = sorted(path.name for path in (root / "plugin_api").glob("*.h"))
    lines = [f'#include "plugin_api/{name}"' for name in headers]
    lines += ["#include <stdio.h>", "#define AT(s, f) printf(\"  %zu %s\\n\", offsetof(s, f), #f)",
              "int main(void) {",
              '  printf("abi %d.%d\\n", CAPSTAN_ABI_MAJOR, CAPSTAN_ABI_MINOR);']
    for name, fields in structs_of(root):
        lines.append(f'  printf("{name} %zu\\n", sizeof({name}));')
        lines += [f"  AT({name}, {field});" for field in fields]
    lines += ["  return 0;", "}", ""]
    with tempfile.TemporaryDirectory() as folder:
        source, program = pathlib.Path(folder, "layout.c"), pathlib.Path(folder, "layout")
        source.write_text("\n".join(lines))
        subprocess.run([compiler, "-std=c99", f"-I{root}", source, "-o", program], check=True)
        return subprocess.run([program], check=True, capture_output=True, text=True).stdout


def parse(text):
    """Baseline text into (version, {struct: (size, [(offset, field)])})."""
    version, structs, fields = None, {}, None
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("abi "):
            version = line.split()[1]
        elif line.startswith("  "):
            offset, field = line.split()
            fields.append((int(offset), field))
        else:
            name, size = line.split()
            fields = []
            structs[name] = (int(size), fields)
    return version, structs


def differences(baseline, current):
    out = []
    for name in sorted(set(baseline) | set(current)):
        if name not in current:
            out.append(f"{name} is gone")
        elif name not in baseline:
            out.append(f"{name} is new")
        elif baseline[name] != current[name]:
            old, new = dict(map(reversed, baseline[name][1])), dict(map(reversed, current[name][1]))
            details = [f"{field}: offset {old.get(field, 'none')} -> {new.get(field, 'none')}"
                       for field in {**old, **new} if old.get(field) != new.get(field)]
            sizes = f"size {baseline[name][0]} -> {current[name][0]}"
            out.append(f"{name}: " + "; ".join([sizes] + details))
    return out


def breaks(baseline, current):
    """Differences that appending fields and structs does not explain."""
    out = []
    for name, (_, fields) in baseline.items():
        if name not in current or current[name][1][:len(fields)] != fields:
            out.append(name)
    return out


def assertions(baseline_text, root):
    version, structs = parse(baseline_text)
    lines = ["// Generated from tests/abi/layout.txt by layout.py."]
    lines += [f'#include "plugin_api/{path.name}"'
              for path in sorted((root / "plugin_api").glob("*.h"))]
    major, minor = version.split(".")
    lines.append(f"static_assert(CAPSTAN_ABI_MAJOR == {major} && CAPSTAN_ABI_MINOR == {minor}, "
                 f'"layout.txt is of ABI {version}");')
    for name, (size, fields) in structs.items():
        lines.append(f'static_assert(sizeof({name}) == {size}, "{name} changed size");')
        lines += [f'static_assert(offsetof({name}, {field}) == {offset}, "{name}.{field} moved");'
                  for offset, field in fields]
    return "\n".join(lines) + "\n"


def check(arguments, baseline_text):
    old_version, old = parse(baseline_text)
    new_version, new = parse(measure(arguments.root, arguments.compiler))
    changed = differences(old, new)
    if old_version != new_version:
        changed.insert(0, f"ABI version {old_version} -> {new_version}")
    for line in changed:
        print(line, file=sys.stderr)
    if changed:
        sys.exit("the plugin ABI is not that of tests/abi/layout.txt. " + REMEDY)
    print(f"{len(new)} structs, {sum(len(fields) for _, fields in new.values())} fields as recorded")


def update(arguments, path):
    text = measure(arguments.root, arguments.compiler)
    if path.exists() and not arguments.unreleased:
        old_version, old = parse(path.read_text())
        new_version, new = parse(text)
        if old_version.split(".")[0] == new_version.split(".")[0] and breaks(old, new):
            sys.exit(f"{', '.join(breaks(old, new))} changed under the same major version. " + REMEDY)
        if old_version == new_version and differences(old, new):
            sys.exit("the layout grew under the same version. " + REMEDY)
    header = ("# Size of every struct of plugin_api/, and the offset of every field. Written by\n"
              "# `cmake --build <build> --target abi_baseline`.\n")
    path.write_text(header + text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["check", "asserts", "update"])
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--compiler", default="cc")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--baseline", type=pathlib.Path)
    parser.add_argument("--unreleased", action="store_true")
    arguments = parser.parse_args()
    path = arguments.baseline or pathlib.Path(__file__).parent / "layout.txt"
    if arguments.action == "update":
        update(arguments, path)
    elif arguments.action == "check":
        check(arguments, path.read_text())
    else:
        arguments.output.write_text(assertions(path.read_text(), arguments.root))


if __name__ == "__main__":
    main()
