// The plugin's options.
#ifndef CAPSTAN_PLUGINS_COMM_GLOO_SETTINGS_H_
#define CAPSTAN_PLUGINS_COMM_GLOO_SETTINGS_H_

#include <cstdint>
#include <string>

#include "sdk/options.h"

namespace capstan::gloo_comm {

struct Settings {
  explicit Settings(const sdk::Options& options)
      : timeout_s(options.get_float("timeout_s")),
        address(options.get_string("address")),
        interface_name(options.get_string("interface")),
        piece_bytes(static_cast<uint64_t>(options.get_int("piece_bytes"))),
        gathered_bytes(static_cast<uint64_t>(options.get_int("gathered_bytes"))) {}

  double timeout_s;            // for connecting a group
  std::string address;         // to listen on
  std::string interface_name;  // whose address to listen on; "": `address`
  uint64_t piece_bytes;        // a reduction is worked through in pieces of this size
  uint64_t gathered_bytes;     // up to this, an all-reduce gathers everything everywhere
};

}  // namespace capstan::gloo_comm

#endif  // CAPSTAN_PLUGINS_COMM_GLOO_SETTINGS_H_
