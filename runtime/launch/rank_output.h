// The output of ranks other than 0: whole lines, each after "[rank 2] ", to the launcher's own output.
#ifndef CAPSTAN_RUNTIME_LAUNCH_RANK_OUTPUT_H_
#define CAPSTAN_RUNTIME_LAUNCH_RANK_OUTPUT_H_

#include <poll.h>

#include <list>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/launch/wire.h"

namespace capstan {

// Never blocks: what the target does not take yet waits here, and past a limit the ranks wait.
class RankOutput {
 public:
  // Descriptors to write to; not owned, and left as they are (others may share them).
  RankOutput(int out, int err) : targets_{{out, {}, false}, {err, {}, false}} {}

  // The reading ends of a rank's pipes; made non-blocking here.
  void Add(int rank, Fd out, Fd err);
  // What poll(2) is to watch, and what to do after. The order of descriptors is kept in between.
  void Watch(std::vector<pollfd>* fds) const;
  void Handle();
  // The rank has ended: takes what its pipes still hold and lets them go.
  void Finish(int rank);
  // A line of the launcher's own on the error output, after what is there already.
  void Say(std::string_view line);
  // Waits for the targets to take everything. False: they did not within that time.
  bool Flush(double seconds);

 private:
  static constexpr size_t kMostPending = 1 << 20;
  static constexpr size_t kLongestLine = 1 << 16;  // longer ones are cut into several

  struct Target {
    int fd;
    std::string pending;
    bool broken;  // nobody reads it any more: what it should get is dropped
  };
  struct Source {
    int rank;
    int target;
    Fd fd;
    std::string line;  // not whole yet
  };

  void Read(Source& source);
  void Take(Source& source, std::string_view bytes);
  void EmitLine(const Source& source, std::string_view line);
  void Write(Target& target);

  Target targets_[2];
  std::list<Source> sources_;
};

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_LAUNCH_RANK_OUTPUT_H_
