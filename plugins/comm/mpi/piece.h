// The steps an operation consists of. A group works through them in the order they were started, on
// every rank the same.
#ifndef CAPSTAN_PLUGINS_COMM_MPI_PIECE_H_
#define CAPSTAN_PLUGINS_COMM_MPI_PIECE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "plugins/comm/common/request.h"
#include "plugins/comm/mpi/links.h"
#include "plugins/comm/mpi/settings.h"

namespace capstan::mpi {

struct Operation;

// One or two exchanges with local work between and after. Its methods are called once per start of
// the operation, in this order, with the library's lock held; they may throw.
class Piece {
 public:
  virtual ~Piece() = default;

  // Posts the first exchange. `slot`: staging memory of slot_bytes(), this piece's until finish.
  virtual void begin(const Links& links, char* slot) = 0;
  virtual bool has_second() const { return false; }
  virtual void between() {}             // the first exchange has arrived
  virtual void second(const Links&) {}  // posts the second one, in the order of begin
  virtual void finish() {}
  // Staging memory; 0 needs none.
  virtual size_t slot_bytes() const { return 0; }
  // Nothing that was started later begins before this one has finished.
  virtual bool is_fence() const { return false; }

  Requests requests;
  Operation* owner = nullptr;
};

using Pieces = std::vector<std::unique_ptr<Piece>>;

// The pieces of a collective; reductions as settings.ordered says.
Pieces plan(const comm::Request& request, const Links& links, const Settings& settings);

// The ranks compare what they are about to do; finish throws a sentence with both labels.
std::unique_ptr<Piece> check_piece(const comm::Request& request, const Links& links);

// reduce_piece.cc
void plan_all_reduce(const comm::Request& request, const Links& links, const Settings& settings,
                     Pieces& out);
void plan_reduce_scatter(const comm::Request& request, const Links& links, const Settings& settings,
                         Pieces& out);
// library_reduce.cc: the same with MPI's own algorithms and operators.
void plan_library_all_reduce(const comm::Request& request, const Links& links,
                             const Settings& settings, Pieces& out);
void plan_library_reduce_scatter(const comm::Request& request, const Links& links,
                                 const Settings& settings, Pieces& out);

// Staging memory a group needs for pieces of these settings.
size_t slot_bytes(const Links& links, const Settings& settings);

}  // namespace capstan::mpi

#endif  // CAPSTAN_PLUGINS_COMM_MPI_PIECE_H_
