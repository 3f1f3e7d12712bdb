// The plugin's options; equal on all ranks of a group, which forming it checks.
#ifndef CAPSTAN_PLUGINS_COMM_MPI_SETTINGS_H_
#define CAPSTAN_PLUGINS_COMM_MPI_SETTINGS_H_

#include <cstdint>

#include "sdk/options.h"

namespace capstan::mpi {

enum class Checks { kNever, kFirst, kAlways };

struct Settings {
  explicit Settings(const sdk::Options& options)
      : timeout_s(options.get_float("timeout_s")),
        ordered(options.get_string("reduction") == "ordered"),
        checks(options.get_string("check") == "never"   ? Checks::kNever
               : options.get_string("check") == "first" ? Checks::kFirst
                                                        : Checks::kAlways),
        piece_bytes(static_cast<uint64_t>(options.get_int("piece_bytes"))),
        gathered_bytes(static_cast<uint64_t>(options.get_int("gathered_bytes"))),
        largest_count(static_cast<uint64_t>(options.get_int("largest_count"))) {}

  double timeout_s;         // for forming a group
  bool ordered;             // reductions by us in the order of ranks; else by MPI's operators
  Checks checks;            // when the ranks compare what they are about to do
  uint64_t piece_bytes;     // a reduction is worked through in pieces of this size
  uint64_t gathered_bytes;  // up to this, an all-reduce gathers everything everywhere: one exchange
  uint64_t largest_count;   // elements of one MPI call
};

}  // namespace capstan::mpi

#endif  // CAPSTAN_PLUGINS_COMM_MPI_SETTINGS_H_
