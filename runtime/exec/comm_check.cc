#include "runtime/exec/comm_check.h"

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "runtime/exec/communicator.h"
#include "runtime/status.h"

namespace capstan {
namespace {

bool IsMessage(const Op& op) { return !op.def->is(CAPSTAN_OP_COLLECTIVE); }
bool IsSend(const Op& op) { return op.kind() == "send" || op.kind() == "send_grad"; }

// dtype and elements of what travels. Of a gather and a scatter the whole, which all ranks know alike.
std::string Extent(const Program& program, const Op& op) {
  const bool from_inputs = op.kind() != "all_gather" && !op.inputs.empty();
  std::string text;
  for (TensorId t : from_inputs ? op.inputs : op.outputs) {
    const Tensor& tensor = program.tensor(t);
    StrAppend(&text, text.empty() ? "" : ",", DTypeName(tensor.dtype()),
              ShapeString(tensor.shape()));
  }
  return text;
}

std::string StartLine(const Program& program, const Op& op, int microbatch) {
  const std::string axis = op.attrs.String("axis", "");
  const std::string where =
      StrCat(" | ", program.OpText(op.id), " in segment ", program.segments()[op.segment].name,
             microbatch < 0 ? "" : StrCat(", microbatch ", microbatch), "\n");
  if (IsMessage(op)) {
    return StrCat(IsSend(op) ? "send " : "recv ", axis, " ", op.attrs.Int("peer", 0), " ",
                  ChannelOf(op), " ", Extent(program, op), where);
  }
  std::string what = StrCat(op.kind(), ":", Extent(program, op));
  if (op.attrs.Has("dim")) StrAppend(&what, ":dim=", op.attrs.Int("dim", 0));
  if (op.attrs.Has("root")) StrAppend(&what, ":root=", op.attrs.Int("root", 0));
  if (op.attrs.Has("counts")) StrAppend(&what, ":counts=", ShapeString(op.attrs.Ints("counts")));
  StrAppend(&what, ":", op.attrs.String("reduce", "sum"));
  return StrCat("start ", axis, " ", what, where);
}

struct Event {
  enum Kind { kStart, kSend, kRecv, kWait } kind = kStart;
  std::string axis, what, op;
  int peer = 0, channel = 0;
  size_t of = 0;  // kWait: index of the event it waits for
};

absl::StatusOr<std::vector<Event>> Parse(const std::string& script) {
  std::vector<Event> events;
  std::vector<size_t> starts;
  for (absl::string_view line : absl::StrSplit(script, '\n', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> halves =
        absl::StrSplit(line, absl::MaxSplits(" | ", 1));
    const std::vector<std::string> words = absl::StrSplit(halves.first, ' ');
    Event e;
    e.op = std::string(halves.second);
    bool good = true;
    if (words[0] == "wait" && words.size() == 2) {
      e.kind = Event::kWait;
      uint64_t number = 0;
      good = absl::SimpleAtoi(words[1], &number) && number < starts.size();
      if (good) e.of = starts[number];
    } else if (words[0] == "start" && words.size() == 3) {
      e.axis = words[1];
      e.what = words[2];
    } else if ((words[0] == "send" || words[0] == "recv") && words.size() == 5) {
      e.kind = words[0] == "send" ? Event::kSend : Event::kRecv;
      e.axis = words[1];
      e.what = words[4];
      good = absl::SimpleAtoi(words[2], &e.peer) && absl::SimpleAtoi(words[3], &e.channel);
    } else {
      good = false;
    }
    if (!good) return BugError("a rank's list of communication has the line '", line, "'");
    if (e.kind != Event::kWait) starts.push_back(events.size());
    events.push_back(std::move(e));
  }
  return events;
}

class Simulation {
 public:
  explicit Simulation(const Mesh& mesh) : mesh_(mesh) {}

  absl::Status Load(const std::vector<std::string>& scripts, const std::vector<int>& of) {
    for (const std::string& script : scripts) {
      CAPSTAN_ASSIGN_OR_RETURN(std::vector<Event> events, Parse(script));
      scripts_.push_back(std::move(events));
    }
    for (const int script : of) {
      const std::vector<Event>& events = scripts_[static_cast<size_t>(script)];
      ranks_.push_back({&events, std::vector<bool>(events.size(), false), {}, 0});
    }
    return absl::OkStatus();
  }

  absl::Status Run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
        CAPSTAN_ASSIGN_OR_RETURN(const bool some, Advance(r));
        moved = moved || some;
      }
    }
    for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
      if (ranks_[r].next < ranks_[r].events->size()) return Stuck(r);
    }
    return absl::OkStatus();
  }

 private:
  struct Group {
    std::vector<int32_t> members;
    std::map<int, size_t> turns;  // by rank: how many collectives it has started here
  };
  struct Rank {
    const std::vector<Event>* events;
    std::vector<bool> done;                // of each start, send and recv
    std::map<std::string, Group*> groups;  // by axis
    size_t next = 0;
  };
  struct At {
    int rank = 0;
    size_t event = 0;
  };
  using Meeting = std::vector<At>;  // those that have come to the k-th collective of a group
  struct Channel {
    std::deque<At> sends, recvs;
  };

  const Event& Of(const At& at) const { return (*ranks_[at.rank].events)[at.event]; }
  std::string Says(const At& at) const { return StrCat("rank ", at.rank, " runs ", Of(at).op); }

  Group& GroupOf(const At& at) {
    const std::string& axis = Of(at).axis;
    Group*& known = ranks_[at.rank].groups[axis];
    if (known == nullptr) {
      std::vector<int32_t> members = mesh_.Group({axis}, at.rank);
      known = &groups_[members];  // one for axes of the same ranks
      known->members = std::move(members);
    }
    return *known;
  }

  absl::StatusOr<bool> Advance(int r) {
    Rank& rank = ranks_[r];
    const size_t before = rank.next;
    for (; rank.next < rank.events->size(); ++rank.next) {
      const Event& e = (*rank.events)[rank.next];
      if (e.kind == Event::kWait) {
        if (!rank.done[e.of]) break;
      } else if (e.kind == Event::kStart) {
        CAPSTAN_RETURN_IF_ERROR(Arrive({r, rank.next}));
      } else {
        CAPSTAN_RETURN_IF_ERROR(Post({r, rank.next}));
      }
    }
    return rank.next != before;
  }

  absl::Status Arrive(const At& at) {
    Group& group = GroupOf(at);
    const size_t turn = group.turns[at.rank]++;
    const auto place = meetings_.try_emplace({&group, turn}).first;
    Meeting& meeting = place->second;
    meeting.push_back(at);
    const At& first = meeting.front();
    if (Of(first).what != Of(at).what) {
      return BugError("the ranks of one group would run different collectives: ", Says(first), " (",
                      Of(first).what, "), ", Says(at), " (", Of(at).what, "), both as number ",
                      turn + 1, " over axis ", Of(at).axis,
                      "; a strategy emits them in an order that differs between ranks");
    }
    if (meeting.size() < group.members.size()) return absl::OkStatus();
    for (const At& a : meeting) ranks_[a.rank].done[a.event] = true;
    meetings_.erase(place);
    return absl::OkStatus();
  }

  int Peer(const At& at) { return GroupOf(at).members[static_cast<size_t>(Of(at).peer)]; }

  absl::Status Post(const At& at) {
    const Event& e = Of(at);
    const auto size = static_cast<int>(GroupOf(at).members.size());
    if (e.peer < 0 || e.peer >= size) {
      return BugError(Says(at), " with peer ", e.peer, ", but axis ", e.axis, " has ", size,
                      " ranks");
    }
    const bool sends = e.kind == Event::kSend;
    const int from = sends ? at.rank : Peer(at), to = sends ? Peer(at) : at.rank;
    Channel& channel = channels_[{from, to, e.channel}];
    (sends ? channel.sends : channel.recvs).push_back(at);
    if (channel.sends.empty() || channel.recvs.empty()) return absl::OkStatus();
    const At send = channel.sends.front(), recv = channel.recvs.front();
    if (Of(send).what != Of(recv).what) {
      return BugError("a message would arrive as another than it was sent: ", Says(send), " (",
                      Of(send).what, "), ", Says(recv), " (", Of(recv).what, "), channel ",
                      e.channel);
    }
    ranks_[send.rank].done[send.event] = ranks_[recv.rank].done[recv.event] = true;
    channel.sends.pop_front();
    channel.recvs.pop_front();
    return absl::OkStatus();
  }

  // Whom a rank waits for: a member of the group, or the message's other side, that has not come.
  int Missing(const At& at) {
    if (Of(at).kind != Event::kStart) return Peer(at);
    const Group& group = GroupOf(at);
    for (const auto& [key, meeting] : meetings_) {
      const auto came = [&meeting](int rank) {
        return std::any_of(meeting.begin(), meeting.end(),
                           [rank](const At& a) { return a.rank == rank; });
      };
      const bool mine = std::any_of(meeting.begin(), meeting.end(), [&at](const At& a) {
        return a.rank == at.rank && a.event == at.event;
      });
      if (!mine) continue;
      for (const int32_t m : group.members) {
        if (!came(m)) return m;
      }
    }
    return at.rank;
  }

  absl::Status Stuck(int r) {
    const auto waits = [&](int rank) {
      return At{rank, (*ranks_[rank].events)[ranks_[rank].next].of};
    };
    const At mine = waits(r);
    const int other = Missing(mine);
    if (ranks_[other].next >= ranks_[other].events->size()) {
      return BugError("the step would never end: rank ", r, " waits in ", Of(mine).op, " for rank ",
                      other, ", which never comes to it");
    }
    const At theirs = waits(other);
    return BugError("the step would never end: rank ", r, " waits in ", Of(mine).op, " for rank ",
                    other, ", while rank ", other, " waits in ", Of(theirs).op, " for rank ",
                    Missing(theirs), "; a strategy or schedule orders communication in a cycle");
  }

  const Mesh& mesh_;
  std::vector<std::vector<Event>> scripts_;
  std::vector<Rank> ranks_;
  std::map<std::vector<int32_t>, Group> groups_;
  std::map<std::pair<const Group*, size_t>, Meeting> meetings_;  // that are not complete
  std::map<std::tuple<int, int, int>, Channel> channels_;
};

}  // namespace

std::string CommScript(const Program& program, const MemoryPlan& plan) {
  const std::vector<PlannedLaunch>& launches = plan.launches(program);
  std::string script;
  std::vector<size_t> number(launches.size(), 0);
  size_t next = 0;
  for (size_t i = 0; i < launches.size(); ++i) {
    for (int before : launches[i].waits) StrAppend(&script, "wait ", number[before], "\n");
    const Op& op = program.op(launches[i].op);
    if (!IsCommunication(op)) continue;
    number[i] = next++;
    StrAppend(&script, StartLine(program, op, launches[i].microbatch));
  }
  for (int i : plan.unfinished(program)) StrAppend(&script, "wait ", number[i], "\n");
  return script;
}

absl::Status CheckCommunication(const Mesh& mesh, const std::vector<std::string>& scripts,
                                const std::vector<int>& of) {
  if (static_cast<int64_t>(of.size()) != mesh.world()) {
    return BugError("the mesh has ", mesh.world(), " ranks, ", of.size(),
                    " told what they communicate");
  }
  Simulation simulation(mesh);
  CAPSTAN_RETURN_IF_ERROR(simulation.Load(scripts, of));
  return simulation.Run();
}

absl::Status CheckCommunication(const Mesh& mesh, const std::vector<std::string>& scripts) {
  std::vector<int> of(scripts.size());
  std::iota(of.begin(), of.end(), 0);
  return CheckCommunication(mesh, scripts, of);
}

}  // namespace capstan
