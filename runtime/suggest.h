// "Did you mean": the nearest known name to a misspelt one.
#ifndef CAPSTAN_RUNTIME_SUGGEST_H_
#define CAPSTAN_RUNTIME_SUGGEST_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace capstan {

// Edits (insert, delete, replace, swap neighbours) that turn one into the other: the optimal string
// alignment distance.
size_t EditDistance(std::string_view a, std::string_view b);

// The known name closest to `name`, or "" when none is close enough to be what was meant.
std::string Nearest(std::string_view name, const std::vector<std::string>& known);

// `; did you mean "x"?` or `.`: the end of a sentence about an unknown name.
std::string DidYouMean(std::string_view name, const std::vector<std::string>& known);

}  // namespace capstan

#endif  // CAPSTAN_RUNTIME_SUGGEST_H_
