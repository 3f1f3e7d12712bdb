// What is a bundle on disk: one directory, flat.
//
//   model.safetensors       the tensors of group "model"
//   optimizer.safetensors   the tensors of group "optimizer"; <group>.safetensors in general
//   config.json, ...        text files
//   capstan.json            the marker: its presence makes the directory a complete bundle
//
// A directory whose name begins with ".tmp-" is the temporary of a writer or of a removal. A writer
// holds a lock (flock) on its own temporary for as long as it lives, so that cleaning up can tell a
// crashed writer from a busy one.
#ifndef CAPSTAN_PLUGINS_STORE_SAFETENSORS_BUNDLE_H_
#define CAPSTAN_PLUGINS_STORE_SAFETENSORS_BUNDLE_H_

#include <string>
#include <vector>

#include "plugins/store/safetensors/slice.h"

namespace capstan::safetensors {

inline constexpr char kMarker[] = "capstan.json";
inline constexpr char kSuffix[] = ".safetensors";
inline constexpr char kIndex[] = "model.safetensors.index.json";
inline constexpr char kModelGroup[] = "model";

// Runs shorter than this cost more as system calls than as copies inside a larger buffer.
inline constexpr std::uint64_t kShortRun = 4096;
inline constexpr std::uint64_t kWindow = 4 << 20;

// True when the runs should be moved through windows of kWindow bytes that hold many of them: they
// are short and lie close enough that the bytes between them cost less than a call for each.
bool use_windows(const Runs& runs);

// Throws unless `name` is one plain path component: no slash, no leading dot, no control character.
// `what` begins the sentence: "group".
void check_file_name(const std::string& what, const std::string& name);

// Complete bundles directly under `directory`, ascending by name; none when it does not exist.
std::vector<std::string> list_bundles(const std::string& directory);

// Deletes a complete bundle. It vanishes at once (by rename); a crash later leaves a temporary.
void remove_bundle(const std::string& path);

// Deletes the temporaries of crashed writers and interrupted removals under `directory`.
void clean_temporaries(const std::string& directory);

}  // namespace capstan::safetensors

#endif  // CAPSTAN_PLUGINS_STORE_SAFETENSORS_BUNDLE_H_
