// Memory for what arrives before it is reduced: a few slots a group, made when first needed and kept.
#ifndef CAPSTAN_PLUGINS_COMM_MPI_STAGING_H_
#define CAPSTAN_PLUGINS_COMM_MPI_STAGING_H_

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <vector>

namespace capstan::mpi {

class Staging {
 public:
  // So many pieces overlap: one arrives while one is reduced and one goes out.
  static constexpr size_t kSlots = 3;

  explicit Staging(size_t slot_bytes) : slot_bytes_(slot_bytes) {}

  // nullptr while all are in use. Throws std::bad_alloc.
  char* take();
  void give(char* slot);

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  size_t slot_bytes_;
  std::vector<std::unique_ptr<char, Free>> slots_;
  std::vector<char*> free_;
};

}  // namespace capstan::mpi

#endif  // CAPSTAN_PLUGINS_COMM_MPI_STAGING_H_
