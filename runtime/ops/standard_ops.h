// Facts about ops that the host asks for often.
#pragma once

#include <string_view>

#include "runtime/program/program.h"

namespace capstan {

// Floating-point operations of one launch of op `o` on this rank; 0 where its rule has none.
double OpFlops(const Program& program, OpId o);

// True for standard ops that every rank of their axis must reach in the same order.
bool IsCollective(std::string_view kind);

// send, recv, send_grad, recv_grad.
bool IsPointToPoint(std::string_view kind);

}  // namespace capstan
