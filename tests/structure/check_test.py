#!/usr/bin/env python3
"""Every check of check.py passes on a clean tree and fails on the violation it is for."""
import pathlib
import tempfile
import unittest

import check

GUARDED = "#ifndef CAPSTAN_{0}_\n#define CAPSTAN_{0}_\n{1}\n#endif\n"


class Checks(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        self.write("CMakeLists.txt", "")
        self.write("plugin_api/base.h", GUARDED.format("PLUGIN_API_BASE_H", "#include <stdint.h>"))
        self.write("sdk/a.h", GUARDED.format("SDK_A_H", '#include "plugin_api/base.h"'))
        self.write("runtime/b.cc", '#include "sdk/a.h"\n#include <vector>\n')
        self.write("plugins/strategy/x/x.cc", '#include "sdk/a.h"\n#include "plugins/strategy/x/y.h"\n')
        self.write("plugins/strategy/x/CMakeLists.txt", "capstan_add_plugin(x strategy SOURCES x.cc)\n")
        self.write("plugins/strategy/x/README.md", "x\n")
        self.write("tests/t.cc", '#include "runtime/b.h"\n')

    def tearDown(self):
        self.folder.cleanup()

    def write(self, path, text):
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def violations(self, name):
        return [sentence for _, sentence in check.CHECKS[name](self.root)]

    def test_a_clean_tree_passes(self):
        for name in check.CHECKS:
            self.assertEqual(self.violations(name), [], name)

    def assert_violation(self, name, part):
        self.assertTrue(any(part in sentence for sentence in self.violations(name)),
                        self.violations(name))

    def test_a_plugin_includes_the_runtime(self):
        self.write("plugins/strategy/x/x.cc", '#include "runtime/b.h"\n')
        self.assert_violation("includes", "plugins/ may include kernels, plugin_api, sdk")

    def test_the_sdk_includes_the_runtime(self):
        self.write("sdk/a.h", '#include <runtime/b.h>\n')
        self.assert_violation("includes", "sdk/ may include plugin_api")

    def test_the_runtime_includes_a_plugin(self):
        self.write("runtime/b.cc", '#include "plugins/strategy/x/y.h"\n')
        self.assert_violation("includes", "runtime/ may include plugin_api, sdk")

    def test_the_abi_includes_ours_or_a_library(self):
        self.write("plugin_api/base.h", '#include "sdk/a.h"\n')
        self.assert_violation("includes", "may include nothing of ours")
        self.write("plugin_api/base.h", '#include <vector>\n')
        self.assert_violation("includes", "C standard library only")

    def test_a_relative_include(self):
        self.write("runtime/b.cc", '#include "../sdk/a.h"\n')
        self.assert_violation("includes", "from the root")

    def test_a_long_file(self):
        self.write("runtime/b.cc", "\n" * 601)
        self.assert_violation("length", "601 lines")

    def test_a_stray_folder(self):
        self.write("scripts/x.sh", "")
        self.assert_violation("top_level", "top level")

    def test_what_git_ignores_may_lie_at_the_top(self):
        self.write(".gitignore", "/build-*/\n*.o\n")
        self.write("build-mine/x.o", "")
        self.assertEqual(self.violations("top_level"), [])

    def test_a_camel_case_file(self):
        self.write("runtime/LayerNorm.cc", "")
        self.assert_violation("names", "snake_case")

    def test_a_wrong_guard(self):
        self.write("sdk/a.h", GUARDED.format("SDK_B_H", ""))
        self.assert_violation("guards", "CAPSTAN_SDK_A_H_")

    def test_something_unfinished(self):
        self.write("runtime/b.cc", "// TO" + "DO: finish\n")
        self.assert_violation("unfinished", "unfinished")

    def test_a_plugin_without_readme_or_call(self):
        (self.root / "plugins/strategy/x/README.md").unlink()
        self.write("plugins/strategy/x/CMakeLists.txt", "add_library(x MODULE x.cc)\n")
        self.assert_violation("plugins", "README.md")
        self.assert_violation("plugins", "capstan_add_plugin")


if __name__ == "__main__":
    unittest.main()
