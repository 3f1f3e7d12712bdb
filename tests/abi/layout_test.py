#!/usr/bin/env python3
"""layout.py notices what it must: a field inserted, moved, resized, removed; and lets fields be
appended under a new minor version only."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).parent / "layout.py"
HEADER = """#include <stddef.h>
#include <stdint.h>
#define CAPSTAN_ABI_MAJOR 1
#define CAPSTAN_ABI_MINOR %d
typedef struct capstan_thing {
  size_t struct_size; /* a; comment, with (noise) */
%s
} capstan_thing;
"""
FIELDS = "  int32_t a, b;\n  const char* const* names;\n  void (*call)(void* self, int32_t x);"


class Layout(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        (self.root / "plugin_api").mkdir()
        self.write(FIELDS)
        self.assertEqual(self.run_script("update").returncode, 0)

    def tearDown(self):
        self.folder.cleanup()

    def write(self, fields, minor=0):
        (self.root / "plugin_api" / "thing.h").write_text(HEADER % (minor, fields))

    def run_script(self, action, *more):
        command = [sys.executable, SCRIPT, action, "--root", self.root, "--compiler", "cc",
                   "--baseline", self.root / "layout.txt", *more]
        return subprocess.run(command, capture_output=True, text=True)

    def test_unchanged_passes(self):
        result = self.run_script("check")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("1 structs, 5 fields", result.stdout)

    def test_inserted_field_fails(self):
        self.write("  int64_t early;\n" + FIELDS)
        result = self.run_script("check")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("a: offset 8 -> 16", result.stderr)

    def test_resized_field_fails(self):
        self.write(FIELDS.replace("int32_t a, b", "int64_t a, b"))
        self.assertIn("capstan_thing: size", self.run_script("check").stderr)

    def test_removed_struct_fails(self):
        (self.root / "plugin_api" / "thing.h").write_text(
            "#define CAPSTAN_ABI_MAJOR 1\n#define CAPSTAN_ABI_MINOR 0\n#include <stddef.h>\n")
        self.assertIn("capstan_thing is gone", self.run_script("check").stderr)

    def test_appending_needs_a_new_minor(self):
        self.write(FIELDS + "\n  int64_t late;")
        self.assertNotEqual(self.run_script("update").returncode, 0)
        self.write(FIELDS + "\n  int64_t late;", minor=1)
        self.assertEqual(self.run_script("update").returncode, 0)
        self.assertEqual(self.run_script("check").returncode, 0)

    def test_breaking_is_refused_under_the_same_major(self):
        self.write("  int64_t early;\n" + FIELDS, minor=1)
        result = self.run_script("update")
        self.assertIn("changed under the same major version", result.stderr)

    def test_assertions_name_what_moved(self):
        output = self.root / "asserts.cc"
        self.assertEqual(self.run_script("asserts", "--output", output).returncode, 0)
        compile_it = ["c++", "-std=c++20", "-fsyntax-only", f"-I{self.root}", output]
        self.assertEqual(subprocess.run(compile_it, capture_output=True).returncode, 0)
        self.write("  int64_t early;\n" + FIELDS)
        broken = subprocess.run(compile_it, capture_output=True, text=True)
        self.assertIn("capstan_thing.a moved", broken.stderr)


if __name__ == "__main__":
    unittest.main()
