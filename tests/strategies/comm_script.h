// Scripts of what ranks communicate, written by hand, as CheckCommunication reads them.
#pragma once

#include <string>
#include <string_view>

#include "runtime/strings.h"

namespace capstan::strategies_test {

// The list of one rank. Each start, send and receive gives its number, which Wait takes.
class Script {
 public:
  // A collective over an axis; `what` must be equal on the ranks of a group, `op` is what a message
  // calls it.
  int Start(std::string_view axis, std::string_view what, std::string_view op) {
    StrAppend(&text_, "start ", axis, " ", what, " | ", op, "\n");
    return next_++;
  }
  // Messages to and from the peer-th rank of this rank's group along the axis.
  int Send(std::string_view axis, int peer, int channel, std::string_view what,
           std::string_view op) {
    return Message("send", axis, peer, channel, what, op);
  }
  int Recv(std::string_view axis, int peer, int channel, std::string_view what,
           std::string_view op) {
    return Message("recv", axis, peer, channel, what, op);
  }
  void Wait(int number) { StrAppend(&text_, "wait ", number, "\n"); }

  const std::string& text() const { return text_; }

 private:
  int Message(std::string_view kind, std::string_view axis, int peer, int channel,
              std::string_view what, std::string_view op) {
    StrAppend(&text_, kind, " ", axis, " ", peer, " ", channel, " ", what, " | ", op, "\n");
    return next_++;
  }

  std::string text_;
  int next_ = 0;
};

}  // namespace capstan::strategies_test
