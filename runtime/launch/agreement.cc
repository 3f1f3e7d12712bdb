// What ranks must agree on, and which of them share a machine: exchanges over bootstrap.h.
#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_split.h"
#include "runtime/launch/bootstrap.h"
#include "runtime/launch/meeting.h"
#include "runtime/launch/rendezvous_file.h"
#include "runtime/launch/sha256.h"
#include "runtime/launch/wire.h"
#include "runtime/status.h"

namespace capstan {
namespace {

constexpr char kAbsent[] = "not there";
constexpr size_t kMostReported = 5;

using FactMap = std::map<std::string, std::string>;

std::string Pack(const std::vector<Fact>& facts) {
  std::string packed;
  for (const Fact& fact : facts) {
    AppendText(&packed, fact.name);
    AppendText(&packed, fact.value);
  }
  return packed;
}

FactMap Unpack(const std::string& packed) {
  FactMap facts;
  Fields fields(packed);
  for (;;) {
    const std::string name(fields.Text());
    const std::string value(fields.Text());
    if (!fields.ok()) return facts;
    facts[name] = value;
  }
}

// The ranks by their value of one fact.
using Sides = std::map<std::string, std::vector<int>>;

Sides SidesOf(const std::string& name, const std::vector<FactMap>& all) {
  Sides sides;
  for (size_t r = 0; r < all.size(); ++r) {
    const auto found = all[r].find(name);
    sides[found == all[r].end() ? kAbsent : found->second].push_back(static_cast<int>(r));
  }
  return sides;
}

// Most ranks have it; of equals, rank 0's side.
std::string Common(const Sides& sides) {
  const auto better = [](const auto& a, const auto& b) {
    return a.second.size() != b.second.size() ? a.second.size() < b.second.size()
                                              : a.second[0] > b.second[0];
  };
  return std::max_element(sides.begin(), sides.end(), better)->first;
}

}  // namespace

std::vector<Fact> FactsOfToml(std::string_view resolved) {
  std::vector<Fact> facts;
  std::map<std::string, int> repeats;  // [[tables]] of one name
  std::string table;
  for (const absl::string_view raw : absl::StrSplit(ToAbsl(resolved), '\n')) {
    const std::string line(raw);
    if (line.empty() || line[0] == '#') continue;
    const size_t equals = line.find(" = ");
    if (line[0] == '[' && line.back() == ']' && equals == std::string::npos) {
      const bool repeated = line.compare(0, 2, "[[") == 0;
      const size_t brackets = repeated ? 2 : 1;
      table = line.substr(brackets, line.size() - 2 * brackets);
      if (repeated) table = StrCat(table, "[", repeats[table]++, "]");
    } else if (table == "resolved") {
      continue;  // how the configuration came about, not what it is
    } else if (equals != std::string::npos) {
      facts.push_back(
          {table.empty() ? line.substr(0, equals) : StrCat(table, ".", line.substr(0, equals)),
           line.substr(equals + 3)});
    } else if (!facts.empty()) {
      StrAppend(&facts.back().value, "\n", line);
    }
  }
  return facts;
}

absl::Status RequireSameFacts(Bootstrap& bootstrap, std::string_view name,
                              const std::vector<Fact>& facts) {
  const std::string mine = Pack(facts);
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> digests,
                           bootstrap.ExchangeStrings(name, AsText(Sha256(mine))));
  if (std::count(digests.begin(), digests.end(), digests[0]) == bootstrap.size()) {
    return absl::OkStatus();
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> packed,
                           bootstrap.ExchangeStrings(StrCat(name, " in full"), mine));
  std::vector<FactMap> all;
  std::set<std::string> names;
  for (const std::string& p : packed) {
    all.push_back(Unpack(p));
    for (const auto& [fact, value] : all.back()) names.insert(fact);
  }
  std::string text;
  std::set<int> odd;
  size_t differences = 0;
  for (const std::string& fact : names) {
    const Sides sides = SidesOf(fact, all);
    if (sides.size() < 2) continue;
    const std::string common = Common(sides);
    for (const auto& [value, ranks] : sides) {
      if (value == common) continue;
      odd.insert(ranks.begin(), ranks.end());
      if (++differences > kMostReported) continue;
      StrAppend(&text, text.empty() ? "" : "; ", RanksText(ranks),
                ranks.size() == 1 ? " has " : " have ", fact, " = ", value, ", ",
                RanksText(sides.at(common)), sides.at(common).size() == 1 ? " has " : " have ",
                common);
    }
  }
  if (odd.empty()) return absl::OkStatus();
  if (differences > kMostReported) {
    StrAppend(&text, "; and ", differences - kMostReported, " more");
  }
  const std::vector<int> ranks(odd.begin(), odd.end());
  return MakeStatus(CAPSTAN_USAGE,
                    StrCat(RanksText(ranks), ranks.size() == 1 ? " differs" : " differ",
                           " from the others in ", name, ": ", text,
                           "; start every rank with the same configuration and the same plugins"),
                    /*retryable=*/false, ranks.size() == 1 ? ranks[0] : -1);
}

absl::Status LearnMachines(Bootstrap& bootstrap, World* world) {
  if (world->size == 1) {
    world->local_rank = 0;
    world->local_size = 1;
    return absl::OkStatus();
  }
  // Every rank takes part, also those that were told: some launchers tell only some ranks.
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> machines,
                           bootstrap.ExchangeStrings("capstan/machines", MachineId()));
  if (world->local_size > 0) return absl::OkStatus();
  world->local_rank = world->local_size = 0;
  for (int r = 0; r < world->size; ++r) {
    if (machines[r] != machines[world->rank]) continue;
    if (r < world->rank) ++world->local_rank;
    ++world->local_size;
  }
  return absl::OkStatus();
}

}  // namespace capstan
