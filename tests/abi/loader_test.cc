// runtime/loader.h: what loads, what is refused and with which sentence.
#include "runtime/loader.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plugin_api/tracker.h"
#include "runtime/status.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

std::string PluginFile(const std::string& name) {
  return std::string(CAPSTAN_BAD_PLUGINS) + "/lib" + name + ".so";
}

// What variant.c counts.
struct Counter {
  size_t struct_size;
  int32_t inits, deinits;
  const capstan_host* host;
};

class LoaderTest : public testing::Test {
 protected:
  LoaderTest() : folder_(testing::TempDir() + "capstan_loader_test_" + TestName()) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~LoaderTest() override { fs::remove_all(folder_); }

  static std::string TestName() {
    return testing::UnitTest::GetInstance()->current_test_info()->name();
  }

  std::unique_ptr<PluginRegistry> Registry(std::vector<std::string> search_path = {}) {
    absl::StatusOr<std::unique_ptr<PluginRegistry>> registry =
        PluginRegistry::Create({std::move(search_path), &services_});
    EXPECT_TRUE(registry.ok()) << registry.status();
    return *std::move(registry);
  }
  std::string LoadProblem(const std::string& path) {
    return std::string(Registry()->Load(path).status().message());
  }
  std::string Copy(const std::string& plugin, const std::string& to) {
    const fs::path target = folder_ / to;
    fs::create_directories(target.parent_path());
    fs::copy_file(PluginFile(plugin), target);
    return target.string();
  }
  std::string Folder(const std::string& name) { return (folder_ / name).string(); }

  ServiceRegistry services_;
  fs::path folder_;
};

// ---- refusals
// ------------------------------------------------------------------------------------

struct BadPlugin {
  const char* file;
  const char* sentence;  // after the path, which every message names
};

class BadPluginTest : public LoaderTest, public testing::WithParamInterface<BadPlugin> {};

TEST_P(BadPluginTest, IsRefusedInASentence) {
  const absl::Status status = Registry()->Load(PluginFile(GetParam().file)).status();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(PluginFile(GetParam().file)), HasSubstr(GetParam().sentence)));
}

INSTANTIATE_TEST_SUITE_P(
    Loader, BadPluginTest,
    testing::Values(
        BadPlugin{"wrong_magic", "not with the magic number of a plugin descriptor"},
        BadPlugin{"wrong_major",
                  "was built for plugin ABI 7.0, but this is capstan 0.1.0 (plugin "
                  "ABI 1.0); rebuild the plugin, or use a host of ABI 7."},
        BadPlugin{"no_entry", "does not export capstan_plugin_entry, so it is not a plugin"},
        BadPlugin{"unresolved", "undefined symbol: capstan_test_symbol_of_nobody"},
        BadPlugin{"small_descriptor",
                  "has a descriptor of 40 bytes, but plugin ABI 1 needs at least"},
        BadPlugin{"nameless", "does not say its name"},
        BadPlugin{"no_get_component", "has no get_component"},
        BadPlugin{"no_components", "offers no component"},
        BadPlugin{"endless", "offers more than 4096 components"},
        BadPlugin{"init_fails", "refused to start: this machine has no flux capacitor"},
        BadPlugin{"small_component", "has a component of 16 bytes"},
        BadPlugin{"no_kind", "has a component without kind, id or interface_id"},
        BadPlugin{"no_vtable", "has no vtable"},
        BadPlugin{"small_vtable", "has a vtable of 16 bytes, but capstan.tracker/1 needs at least"},
        BadPlugin{"missing_function", "lacks flush, which capstan.tracker/1 requires"},
        BadPlugin{"twice", "offers tracker \"good\" twice"},
        BadPlugin{"nameless_option", "declares option 0 without a name"},
        BadPlugin{"small_option", "declares option 0 with struct_size 8"},
        BadPlugin{"throws_in_init", "threw an exception from init across the C boundary"}),
    [](const auto& info) { return std::string(info.param.file); });

TEST_F(LoaderTest, AMissingFileIsNamed) {
  EXPECT_EQ(LoadProblem("/nowhere/libx.so"), "there is no plugin file /nowhere/libx.so.");
  EXPECT_EQ(LoadProblem("/"), "the plugin / is not a regular file.");
}

TEST_F(LoaderTest, WhatIsNoLibraryGetsTheLoadersOwnWords) {
  const std::string path = (folder_ / "libtext.so").string();
  std::ofstream(path) << "hello\n";
  EXPECT_THAT(LoadProblem(path),
              AllOf(StartsWith("cannot load the plugin " + path + " into capstan 0.1.0"),
                    HasSubstr("file too short")));
}

TEST_F(LoaderTest, RefusalsAreUsageErrorsUnlessThePluginSaysOtherwise) {
  EXPECT_EQ(ExitCode(Registry()->Load(PluginFile("wrong_major")).status()), kExitUsage);
  EXPECT_EQ(StatusClass(Registry()->Load(PluginFile("init_fails")).status()), CAPSTAN_UNSUPPORTED);
}

TEST_F(LoaderTest, AnExceptionInCreateBecomesAStatus) {
  const auto registry = Registry();
  const auto component = registry->Find("tracker", "thrower", PluginFile("throws_in_create"));
  ASSERT_TRUE(component.ok()) << component.status();
  const capstan_options none = {sizeof(capstan_options), 0, nullptr};
  void* self = this;
  const absl::Status status = FromC(
      (*component)->vtable<capstan_tracker_v1>()->create(registry->host(), &none, "/", -1, &self));
  EXPECT_THAT(std::string(status.message()), HasSubstr("the flux capacitor melted"));
  EXPECT_EQ(self, this) << "out-parameters stay untouched on error";
}

// ---- what loads
// ----------------------------------------------------------------------------------

TEST_F(LoaderTest, FindsAComponentInAFile) {
  const auto registry = Registry();
  const auto component = registry->Find("tracker", "good", PluginFile("good"));
  ASSERT_TRUE(component.ok()) << component.status();
  EXPECT_STREQ((*component)->definition->id, "good");
  EXPECT_STREQ((*component)->plugin->descriptor->version, "2.5.0");
  EXPECT_EQ((*component)->plugin->path, PluginFile("good"));
}

TEST_F(LoaderTest, ANewerMinorIsWelcome) {
  EXPECT_TRUE(Registry()->Find("tracker", "later", PluginFile("future")).ok());
}

TEST_F(LoaderTest, WithAFileTheIdMayBeLeftOutIfThereIsOne) {
  const auto registry = Registry();
  EXPECT_TRUE(registry->Find("tracker", "", PluginFile("good")).ok());
  EXPECT_THAT(
      std::string(registry->Find("tracker", "", PluginFile("two_trackers")).status().message()),
      HasSubstr("offers several of kind tracker (good, second); name one"));
  EXPECT_TRUE(registry->Find("tracker", "good", PluginFile("two_trackers")).ok());
}

TEST_F(LoaderTest, AFileWithoutTheComponentSaysWhatItHas) {
  const auto registry = Registry();
  EXPECT_THAT(std::string(registry->Find("tracker", "bad", PluginFile("good")).status().message()),
              EndsWith("offers no tracker \"bad\"; it has good."));
  EXPECT_THAT(std::string(registry->Find("model", "", PluginFile("good")).status().message()),
              EndsWith("offers no model."));
}

TEST_F(LoaderTest, AnotherInterfaceRevisionListsButIsNotUsed) {
  const auto registry = Registry();
  ASSERT_TRUE(registry->Load(PluginFile("other_revision")).ok());
  EXPECT_THAT(
      std::string(
          registry->Find("tracker", "revised", PluginFile("other_revision")).status().message()),
      HasSubstr("speaks capstan.tracker/2, but capstan 0.1.0 (plugin ABI 1.0) speaks "
                "capstan.tracker/1"));
}

TEST_F(LoaderTest, InitAndDeinitMatch) {
  const Counter* counter = nullptr;
  int32_t inits = 0;
  int32_t deinits = 0;
  for (int round = 0; round < 3; ++round) {
    const auto registry = Registry();
    const auto component = registry->Find("test", "counter", PluginFile("good"));
    ASSERT_TRUE(component.ok()) << component.status();
    ASSERT_TRUE(registry->Load(PluginFile("good")).ok());  // a second time: no second init
    counter = (*component)->vtable<Counter>();
    if (round == 0) {
      inits = counter->inits - 1;
      deinits = counter->deinits;
    }
    EXPECT_EQ(counter->inits - inits, round + 1);
    EXPECT_EQ(counter->deinits - deinits, round);
    EXPECT_EQ(counter->host, registry->host());
  }
  // The registry is gone, its library is not: pointers into it stay good.
  EXPECT_EQ(counter->deinits - deinits, 3);
}

TEST_F(LoaderTest, ASymlinkIsTheSamePlugin) {
  const auto registry = Registry();
  const auto first = registry->Load(PluginFile("good"));
  const fs::path link = folder_ / "liblink.so";
  fs::create_symlink(PluginFile("good"), link);
  const auto second = registry->Load(link.string());
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(*first, *second);
}

TEST_F(LoaderTest, ACopyIsRefusedNamingBothFiles) {
  const auto registry = Registry();
  ASSERT_TRUE(registry->Load(PluginFile("good")).ok());
  const std::string copy = Copy("good", "libcopy.so");
  EXPECT_THAT(std::string(registry->Load(copy).status().message()),
              AllOf(HasSubstr(copy), HasSubstr("has the name of one already loaded"),
                    HasSubstr(PluginFile("good"))));
}

// ---- searching
// -----------------------------------------------------------------------------------

TEST_F(LoaderTest, FindsByFileNameWithoutTouchingOthers) {
  Copy("good", "libcapstan_tracker_good.so");
  Copy("wrong_major", "libcapstan_aaa_bad.so");
  const auto registry = Registry({folder_.string()});
  EXPECT_TRUE(registry->Find("tracker", "good").ok());
}

TEST_F(LoaderTest, FallsBackToScanning) {
  Copy("good", "libanything.so");
  const auto component = Registry({folder_.string()})->Find("tracker", "good");
  EXPECT_TRUE(component.ok()) << component.status();
}

TEST_F(LoaderTest, TheFirstFolderWins) {
  Copy("good", "a/libcapstan_tracker_good.so");
  Copy("good", "b/libcapstan_tracker_good.so");
  const auto registry = Registry({Folder("b"), Folder("a")});
  const auto component = registry->Find("tracker", "good");
  ASSERT_TRUE(component.ok()) << component.status();
  EXPECT_THAT((*component)->plugin->path, StartsWith(Folder("b")));
  std::vector<LoadFailure> failures;
  EXPECT_EQ(registry->ListAll(&failures).size(), 2u);  // tracker and counter, once
  EXPECT_THAT(failures, testing::IsEmpty());
}

TEST_F(LoaderTest, AMeantFileThatCannotLoadIsAnErrorNotSkipped) {
  Copy("wrong_major", "a/libcapstan_tracker_good.so");
  Copy("good", "b/libcapstan_tracker_good.so");
  EXPECT_THAT(
      std::string(Registry({Folder("a"), Folder("b")})->Find("tracker", "good").status().message()),
      HasSubstr("was built for plugin ABI 7.0"));
}

TEST_F(LoaderTest, AnUnknownIdListsWhatThereIsAndSuggests) {
  Copy("good", "libgood.so");
  Copy("wrong_magic", "libzbad.so");
  const std::string problem(
      Registry({folder_.string()})->Find("tracker", "goood").status().message());
  EXPECT_THAT(problem, StartsWith("there is no tracker plugin \"goood\" in " + folder_.string() +
                                  ", which has good; did you mean \"good\"?"));
  EXPECT_THAT(problem, HasSubstr("(1 of its files did not load, the first: "));
}

TEST_F(LoaderTest, AHostileIdIsOnlyAName) {
  const std::string problem(
      Registry({folder_.string()})->Find("tracker", "../../../etc/x").status().message());
  EXPECT_THAT(problem, HasSubstr("there is no tracker plugin \"../../../etc/x\""));
}

TEST_F(LoaderTest, ListsByKindAndIdWithFailuresApart) {
  Copy("two_trackers", "libtwo.so");
  Copy("future", "libfuture.so");
  Copy("init_fails", "libfails.so");
  Copy("good", "notes.txt");
  std::vector<LoadFailure> failures;
  const auto registry = Registry({folder_.string(), "/nowhere"});
  std::vector<std::string> names;
  for (const Component* component : registry->ListAll(&failures)) {
    names.push_back(StrCat(component->definition->kind, " ", component->definition->id));
  }
  EXPECT_THAT(names, testing::ElementsAre("test counter", "tracker good", "tracker later",
                                          "tracker second"));
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].path, Folder("libfails.so"));
}

TEST_F(LoaderTest, TheSearchPathBeginsWithTheEnvironment) {
  setenv("CAPSTAN_PLUGIN_PATH", "/one::/two/../three", 1);
  const std::vector<std::string> folders = PluginRegistry::DefaultSearchPath();
  unsetenv("CAPSTAN_PLUGIN_PATH");
  ASSERT_EQ(folders.size(), 4u);
  EXPECT_EQ(folders[0], "/one");
  EXPECT_EQ(folders[1], "/three");
  const fs::path beside = fs::read_symlink("/proc/self/exe").parent_path();
  EXPECT_EQ(folders[2], (beside / "plugins").string());
  EXPECT_EQ(folders[3], (beside.parent_path() / "lib/capstan/plugins").string());
}

// ---- the host
// ------------------------------------------------------------------------------------

TEST_F(LoaderTest, ServicesAreFoundById) {
  const int table = 7;
  services_.Add("test.answer/1", &table);
  const auto registry = Registry();
  const capstan_host* host = registry->host();
  EXPECT_EQ(host->struct_size, sizeof(capstan_host));
  EXPECT_EQ(host->abi_major, static_cast<uint32_t>(CAPSTAN_ABI_MAJOR));
  EXPECT_EQ(host->get_service(host, "test.answer/1"), &table);
  EXPECT_EQ(host->get_service(host, "test.unknown/1"), nullptr);
  EXPECT_EQ(host->get_service(host, nullptr), nullptr);
}

TEST_F(LoaderTest, ALogServiceIsAlwaysThereAndReplaceable) {
  const auto registry = Registry();
  const capstan_host* host = registry->host();
  const auto* log =
      static_cast<const capstan_log_service*>(host->get_service(host, CAPSTAN_LOG_SERVICE));
  ASSERT_NE(log, nullptr);
  EXPECT_EQ(log->struct_size, sizeof(capstan_log_service));
  log->log(host, 0, nullptr, nullptr);  // nothing to say is no reason to crash
  services_.Add(CAPSTAN_LOG_SERVICE, &services_);
  EXPECT_EQ(host->get_service(host, CAPSTAN_LOG_SERVICE), &services_);
}

}  // namespace
}  // namespace capstan
