// Numbers as people read them. Sizes are decimal: 1 GB is 1e9 bytes.
#pragma once

#include <cstdint>
#include <string>

namespace capstan {

std::string GroupedText(int64_t value);    // "124,439,808"
std::string BytesText(double bytes);       // "497.8 MB", "512 B"
std::string GigabytesText(double bytes);   // "208.0 GB", at any size
std::string FlopsText(double operations);  // "3.42 TFLOP"
std::string CountText(double count);       // "13.00 billion", "124.44 million"
std::string PercentText(double share);     // of 0.316: "31.6%"

}  // namespace capstan
